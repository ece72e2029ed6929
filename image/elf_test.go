package image

import (
	"bytes"
	"debug/elf"
	"runtime"
	"testing"

	"github.com/node-upgrader/node-upgrader/image/imagetest"
)

func program(_ *testing.T, machine elf.Machine, text string) []byte {
	return imagetest.Program(machine, text)
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
