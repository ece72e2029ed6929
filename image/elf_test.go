package image

import (
	"bytes"
	"debug/elf"
	bin "encoding/binary"
	"runtime"
	"testing"
)

// program is a static executable that prints text on stderr and ends well. For
// amd64 it runs; for others it has the right header.
func program(t *testing.T, machine elf.Machine, text string) []byte {
	t.Helper()
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
	bin.LittleEndian.PutUint32(code[18:], uint32(len(text)))
	size := uint64(headers + len(code) + len(text))
	var b bytes.Buffer
	h := elf.Header64{
		Ident:   [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:    uint16(elf.ET_EXEC),
		Machine: uint16(machine), Version: 1, Entry: base + headers, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
	}
	p := elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Paddr: base,
		Filesz: size, Memsz: size, Align: 0x1000,
	}
	for _, part := range []any{h, p} {
		if err := bin.Write(&b, bin.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	b.Write(code)
	b.WriteString(text)
	return b.Bytes()
}

func needsAMD64(t *testing.T) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("the test's programs run on amd64")
	}
}

func TestCheckELF(t *testing.T) {
	amd64 := program(t, elf.EM_X86_64, "x")
	object := bytes.Clone(amd64)
	object[16] = byte(elf.ET_REL)
	tests := []struct {
		name, arch string
		data       []byte
		ok         bool
	}{
		{"right", "amd64", amd64, true},
		{"other", "arm64", amd64, false},
		{"arm64", "arm64", program(t, elf.EM_AARCH64, "x"), true},
		{"unknown", "vax", amd64, false},
		{"object", "amd64", object, false},
		{"script", "amd64", []byte("#!/bin/sh\n"), false},
		{"cut", "amd64", amd64[:70], false},
		{"empty", "amd64", nil, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := checkELF(bytes.NewReader(test.data), test.arch); (err == nil) != test.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}
