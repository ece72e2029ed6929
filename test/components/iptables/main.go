// Command iptables is what stands for iptables, ip6tables and their -save and
// -restore in kube-proxy's image: it runs Debian's nft or legacy variant,
// whichever the node's kubelet uses. Rules of both kinds would not see each
// other, and a kernel may have only one of them.
//
// The kubelet's mark is a chain in the mangle table, as the original has it:
// https://github.com/kubernetes-sigs/iptables-wrappers
// Without a mark it is nft, Debian's default.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// found keeps the answer for the life of the container.
const found = "/run/iptables-variant"

func main() {
	name := filepath.Base(os.Args[0])
	program := "/usr/sbin/xtables-" + variant() + "-multi"
	err := syscall.Exec(program, append([]string{name}, os.Args[1:]...), os.Environ())
	fmt.Fprintf(os.Stderr, "%s: run %s: %v\n", name, program, err)
	os.Exit(1)
}

func variant() string {
	if known, err := os.ReadFile(found); err == nil {
		if v := strings.TrimSpace(string(known)); v == "nft" || v == "legacy" {
			return v
		}
	}
	for _, v := range []string{"nft", "legacy"} {
		if marked(v) {
			_ = os.WriteFile(found, []byte(v+"\n"), 0o644) // it is asked again otherwise
			return v
		}
	}
	return "nft"
}

// marked says whether a kubelet left its mark with this variant.
func marked(variant string) bool {
	for _, save := range []string{"iptables-save", "ip6tables-save"} {
		cmd := exec.Command("/usr/sbin/xtables-"+variant+"-multi", save, "-t", "mangle") //nolint:noctx // it waits for nothing
		out, err := cmd.Output()
		if err != nil {
			continue // the kernel does not have it
		}
		if bytes.Contains(out, []byte(":KUBE-IPTABLES-HINT ")) || bytes.Contains(out, []byte(":KUBE-KUBELET-CANARY ")) {
			return true
		}
	}
	return false
}
