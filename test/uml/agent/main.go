// Command agent is the guest's end of the line, on its first serial port.
package main

import (
	"fmt"
	"os"

	"golang.org/x/term"

	"github.com/node-upgrader/node-upgrader/test/uml/link"
)

func main() {
	if err := serve("/dev/ttyS0"); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

func serve(port string) error {
	f, err := os.OpenFile(port, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := term.MakeRaw(int(f.Fd())); err != nil {
		return fmt.Errorf("%s: %w", port, err)
	}
	return link.Serve(f)
}
