package image

import (
	"debug/elf"
	"fmt"
	"io"
	"os"
	"runtime"
)

// machines returns what a binary for an architecture has in its ELF header.
func machines(goarch string) (elf.Machine, bool) {
	switch goarch {
	case "amd64":
		return elf.EM_X86_64, true
	case "arm64":
		return elf.EM_AARCH64, true
	case "ppc64le":
		return elf.EM_PPC64, true
	case "s390x":
		return elf.EM_S390, true
	case "riscv64":
		return elf.EM_RISCV, true
	}
	return elf.EM_NONE, false
}

// checkELF checks that r is a 64-bit executable for an architecture.
func checkELF(r io.ReaderAt, goarch string) error {
	want, known := machines(goarch)
	if !known {
		return fmt.Errorf("architecture %q is not known", goarch)
	}
	f, err := elf.NewFile(r)
	if err != nil {
		return fmt.Errorf("not an ELF binary: %w", err)
	}
	defer f.Close()
	if f.Machine != want || f.Class != elf.ELFCLASS64 {
		return fmt.Errorf("binary is for %s, not for %s", f.Machine, goarch)
	}
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return fmt.Errorf("binary is %s, not an executable", f.Type)
	}
	return nil
}

func foreign(goarch string) bool { return goarch != runtime.GOARCH }

// Architecture is what an executable is for, as GOARCH spells it.
func Architecture(exe string) (string, error) {
	f, err := os.Open(exe)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for _, arch := range []string{"amd64", "arm64", "ppc64le", "s390x", "riscv64"} {
		if err = checkELF(f, arch); err == nil {
			return arch, nil
		}
	}
	return "", fmt.Errorf("%s: not an executable for a known architecture: %w", exe, err)
}
