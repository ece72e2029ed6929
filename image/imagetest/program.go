// Package imagetest makes programs and releases as the projects of a bundle have
// them, small enough for tests.
package imagetest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// Program is a static executable that prints text on stderr and ends well. For
// amd64 it runs; for others it has the right header.
func Program(machine elf.Machine, text string) []byte {
	const base, headers = 0x400000, 64 + 56
	code := []byte{
		0xb8, 1, 0, 0, 0, // mov eax, 1 (write)
		0xbf, 2, 0, 0, 0, // mov edi, 2
		0x48, 0x8d, 0x35, 0x10, 0, 0, 0, // lea rsi, [rip+16]
		0xba, 0, 0, 0, 0, // mov edx, len
		0x0f, 0x05, // syscall
		0xb8, 60, 0, 0, 0, // mov eax, 60 (exit)
		0x31, 0xff, // xor edi, edi
		0x0f, 0x05, // syscall
	}
	binary.LittleEndian.PutUint32(code[18:], uint32(len(text)))
	size := uint64(headers + len(code) + len(text))
	h := elf.Header64{
		Ident:   [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:    uint16(elf.ET_EXEC),
		Machine: uint16(machine), Version: 1, Entry: base + headers, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
	}
	p := elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Paddr: base,
		Filesz: size, Memsz: size, Align: 0x1000,
	}
	var b bytes.Buffer // writing to it cannot fail
	_ = binary.Write(&b, binary.LittleEndian, h)
	_ = binary.Write(&b, binary.LittleEndian, p)
	b.Write(code)
	b.WriteString(text)
	return b.Bytes()
}
