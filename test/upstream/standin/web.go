package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"
)

// web answers every request with a page. A web server renames itself, and
// critest looks for that in /proc/PID/cmdline; a process that executes itself
// anew with another argv[0] is all that takes.
func web(args []string, title, listen, pid string) error {
	if title != "" && args[0] != title {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		return syscall.Exec(self, append([]string{title}, args[1:]...), os.Environ())
	}
	if pid != "" {
		if err := os.WriteFile(pid, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(os.Stderr, "%s: listening on %s\n", title, listen); err != nil {
		return err
	}
	page := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<html><body><h1>It works!</h1></body></html>\n")
	}
	server := &http.Server{Addr: listen, Handler: http.HandlerFunc(page), ReadHeaderTimeout: 5 * time.Second}
	return server.ListenAndServe()
}
