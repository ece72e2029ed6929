// Command standin takes the place of kubelet, kubeadm and kubectl on a node
// without a cluster. It says its version; as a kubelet it also answers /healthz,
// fails its trial as a kubelet does, and keeps a state that no older version
// reads.
package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

var version = "v0.0.0" // set by the linker

const state = "/var/lib/kubelet/cpu_manager_state"

func main() {
	if err := run(filepath.Base(os.Args[0]), strings.Join(os.Args[1:], " ")); err != nil {
		fmt.Fprintf(os.Stderr, "E0101 00:00:00.000000 1 run.go:72] \"command failed\" err=%q\n", err)
		os.Exit(1)
	}
}

func run(name, args string) error {
	switch {
	case strings.Contains(args, "version") && name == "kubelet":
		fmt.Println("Kubernetes " + version)
		return nil
	case strings.Contains(args, "version") && name == "kubectl":
		fmt.Println("Client Version: " + version)
		return nil
	case strings.Contains(args, "version"):
		fmt.Println(version)
		return nil
	case name != "kubelet":
		return errors.New("there is no cluster")
	case os.Getenv("WATCHDOG_USEC") == "trial":
		return errors.New("failed to run Kubelet: create health checker: configure watchdog: error converting WATCHDOG_USEC")
	}
	if data, err := os.ReadFile(state); err == nil && string(data) > version {
		return fmt.Errorf("the state is of version %s", data)
	}
	if err := os.WriteFile(state, []byte(version), 0o600); err != nil {
		return err
	}
	http.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	return (&http.Server{Addr: "127.0.0.1:10248", ReadHeaderTimeout: time.Second}).ListenAndServe()
}
