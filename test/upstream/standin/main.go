// Command standin stands in for what upstream's test images hold, and for the
// registry that they come from:
//
//	standin web -title TITLE -listen ADDRESS -pid FILE   # nginx, httpd
//	standin euid                                         # nonewprivs
//	standin registry -layout DIR -listen ADDRESS
//
// It needs the standard library only.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "standin:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: %s web|euid|registry", args[0])
	}
	flags := flag.NewFlagSet(args[1], flag.ContinueOnError)
	listen := flags.String("listen", ":80", "address to listen on")
	switch args[1] {
	case "web":
		title := flags.String("title", "", "what the process calls itself")
		pid := flags.String("pid", "", "file to write the process ID to")
		if err := flags.Parse(args[2:]); err != nil {
			return err
		}
		return web(args, *title, *listen, *pid)
	case "registry":
		layout := flags.String("layout", "", "OCI image layout to serve")
		if err := flags.Parse(args[2:]); err != nil {
			return err
		}
		return registry(*layout, *listen)
	case "euid":
		// https://github.com/kubernetes/kubernetes/tree/master/test/images/nonewprivs
		_, err := fmt.Fprintf(os.Stdout, "Effective uid: %d\n", os.Geteuid())
		return err
	default:
		return fmt.Errorf("no part %q to play", args[1])
	}
}
