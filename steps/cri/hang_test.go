package cri

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// A containerd that takes connections and never answers is an error, and no wait
// for ever.
func TestHangs(t *testing.T) {
	root := t.TempDir()
	socket, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(root, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	go func() {
		for {
			conn, err := socket.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
		}
	}()
	client, err := dialWith(hostexec.NewFS(root), "/s", func(string) time.Duration { return 50 * time.Millisecond })
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for name, call := range map[string]func(context.Context) error{
		"version": func(ctx context.Context) error { _, err := client.Version(ctx); return err },
		"ready":   client.Ready,
		"list":    func(ctx context.Context) error { _, err := client.Containers(ctx); return err },
	} {
		if err := call(t.Context()); err == nil || !strings.Contains(err.Error(), "no answer for 50ms") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
