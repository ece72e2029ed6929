//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/node-upgrader/node-upgrader/test/cluster"
	"github.com/node-upgrader/node-upgrader/test/components"
	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/payload"
)

// recovery is how a section of the runbook is tried.
type recovery struct {
	title string
	quick bool // in CI too
	whole bool // with a whole upgrade of Kubernetes
	// fall brings the node into the state that the section is about, and
	// returns all that its user sees.
	fall func(n *fallen) string
	// mend is the cause, where the section says that it has to be mended first.
	mend func(n *fallen)
	// ends is what `upgrader status` says at the end, and old whether
	// containerd is the old one then.
	ends string
	old  bool
	// after looks at more, and takes back what the next case cannot have.
	after func(n *fallen, typed string)
}

// Every section of the runbook, on a node that is in the state which it is
// about: what the section quotes shows, its commands are typed as they stand
// there, and the node is well again.
func TestRecovery(t *testing.T) {
	t.Parallel()
	sections, cases := readRunbook(t), recoveries()
	sameTitles(t, sections, cases)
	p := load(t)
	tried := 0
	// on tries those of a kind on a node that they share.
	on := func(kind string, wanted func(recovery) bool, bundle func(*testing.T) string) {
		t.Run(kind, func(t *testing.T) {
			n := &fallen{t: t, payload: p, first: sections[0].commands}
			n.c, _ = up(t, 0)
			n.m = n.c.ControlPlane
			must(t, n.m.CopyIn(p.Upgrader, payload.NodeUpgrader))
			must(t, n.m.CopyIn(bundle(t), payload.NodeBundle))
			for _, s := range sections {
				for _, c := range cases {
					if c.title == s.title && wanted(c) {
						t.Run(c.title, func(t *testing.T) { n.t = t; n.try(s, c); tried++ })
					}
				}
			}
		})
	}
	on("programs", func(c recovery) bool { return !c.whole && (c.quick || everyRecovery) }, func(t *testing.T) string { return quickBundle(t, p) })
	if everyRecovery {
		on("everything", func(c recovery) bool { return c.whole }, func(*testing.T) string { return p.Bundle })
	}
	record(t, figures.Info("recoveries", float64(tried), "entries"))
}

// quickBundle is Kubernetes as it is on the node, but for one byte of the
// kubelet, with the new containerd: every step that replaces a program has
// something to do, and all of them take half a minute.
func quickBundle(t *testing.T, p payload.Payload) string {
	t.Helper()
	set, err := components.Lookup(from)
	must(t, err)
	old, err := components.Build(t.Context(), set, lines{t})
	must(t, err)
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	for name, bin := range map[string]string{
		"kubeadm": old.Bin, "kubectl": old.Bin, "runc": p.Target.Bin, "ctr": p.Target.Bin,
		"containerd": p.Target.Bin, "containerd-shim-runc-v2": p.Target.Bin,
	} {
		must(t, os.Symlink(filepath.Join(bin, name), filepath.Join(dir, "bin", name)))
	}
	kubelet, err := os.ReadFile(filepath.Join(old.Bin, "kubelet"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "bin", "kubelet"), append(kubelet, '\n'), 0o755)) //nolint:gosec // a program
	must(t, os.Symlink(p.Target.CNI, filepath.Join(dir, "cni")))
	out := filepath.Join(dir, "bundle")
	text, err := exec.CommandContext(t.Context(), p.Upgrader, "bundle", "build", "--from", dir, "--out", out).CombinedOutput()
	if err != nil {
		t.Fatalf("bundle: %v\n%s", err, text)
	}
	return out
}

// fallen is a node that is brought into trouble.
type fallen struct {
	t       *testing.T
	payload payload.Payload
	c       *cluster.Cluster
	m       host.Machine
	first   string // the runbook's first commands, which all others need
	flags   string // beside those, what the upgrade was begun with
}

func (n *fallen) try(s section, c recovery) {
	start := time.Now()
	n.flags = ""
	s.shows(n.t, c.fall(n))
	if n.t.Failed() {
		n.t.FailNow()
	}
	if c.mend != nil {
		c.mend(n)
	}
	code, typed := n.shell(n.given() + s.commands)
	n.t.Logf("typed after %.0f s: exit %d\n%s", time.Since(start).Seconds(), code, typed)
	if code != 0 {
		n.t.Fatalf("exit code %d", code)
	}
	must(n.t, n.c.Wait(n.t.Context()))
	status := n.do("PATH=$PATH:/root/upgrade; upgrader status")
	if !strings.Contains(status, c.ends) {
		n.t.Errorf("the status does not say %q:\n%s", c.ends, status)
	}
	if version := sh(n.t, n.m, "ctr", "version"); strings.Contains(version, "v1.7") != c.old {
		n.t.Errorf("containerd is the old one: want %v\n%s", c.old, version)
	}
	if c.after != nil {
		c.after(n, typed)
	}
	n.reset()
	n.t.Logf("%.0f s", time.Since(start).Seconds())
}

// reset undoes whatever run there still is, and forgets all of them.
func (n *fallen) reset() {
	n.t.Helper()
	code, out := n.shell(n.given() + "PATH=$PATH:/root/upgrade; upgrader rollback")
	nothing := code == 3 && (strings.Contains(out, "has nothing left to undo") || strings.Contains(out, "there is no run on this node"))
	if code != 0 && !nothing {
		n.t.Fatalf("undo it: exit %d\n%s", code, out)
	}
	must(n.t, n.c.Wait(n.t.Context()))
	sh(n.t, n.m, "sh", "-c", "rm -rf /var/lib/upgrader/runs; test ! -e /etc/systemd/system/upgrader-recovery.service; grep -q . /etc/kubernetes/manifests/*")
	if version := sh(n.t, n.m, "ctr", "version"); !strings.Contains(version, "v1.7") {
		n.t.Fatalf("containerd is still the new one:\n%s", version)
	}
}

// given is what a user has typed before: the runbook's first commands, and the
// flags of the upgrade.
func (n *fallen) given() string {
	return "exec 2>&1\n" + n.first + "flags=\"$flags " + n.flags + "\"\n"
}

// shell runs a script of sh, to its end.
func (n *fallen) shell(script string) (code int, out string) {
	n.t.Helper()
	return n.shellUntil(n.t.Context(), script)
}

func (n *fallen) shellUntil(ctx context.Context, script string) (code int, out string) {
	r, err := n.m.Exec(ctx, host.Command("sh", "-c", script))
	var exit *host.ExitError
	if err != nil && !errors.As(err, &exit) && ctx.Err() == nil {
		n.t.Errorf("%s: %v", script, err)
	}
	return r.Code, r.Stdout + r.Stderr
}

// see is all that these commands say, however they end.
func (n *fallen) see(commands string) string {
	n.t.Helper()
	_, out := n.shell(n.given() + commands)
	return out
}

// do is see of what has to end well.
func (n *fallen) do(commands string) string {
	n.t.Helper()
	code, out := n.shell(n.given() + commands)
	if code != 0 {
		n.t.Fatalf("%s: exit %d\n%s", commands, code, out)
	}
	return out
}

// carried is do with the program that was brought to the node, which nothing is
// staged for yet.
func (n *fallen) carried(commands string) string {
	n.t.Helper()
	code, out := n.shell("exec 2>&1\ncd /root/upgrade\nflags='--run-id=v1.36.3 " + n.flags + "'\n" + commands)
	if code != 0 {
		n.t.Fatalf("%s: exit %d\n%s", commands, code, out)
	}
	return out
}

// begun is a run that has come as far as containerd.
func (n *fallen) begun() {
	n.t.Helper()
	n.carried("./upgrader copy $flags && ./upgrader containerd $flags")
}

// behind runs commands until they end or cut is called; said is what they have
// said by then.
func (n *fallen) behind(commands string) (cut func(), said func() string) {
	ctx, cancel := context.WithCancel(n.t.Context())
	var out bytes.Buffer
	var over sync.WaitGroup
	over.Go(func() {
		_, text := n.shellUntil(ctx, n.given()+commands)
		out.WriteString(text)
	})
	n.t.Cleanup(cancel)
	return cancel, func() string { over.Wait(); return out.String() }
}

// until waits for a command to succeed.
func (n *fallen) until(what string) {
	n.t.Helper()
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		if code, out := n.shell(what); code == 0 {
			return
		} else if time.Since(start) > 3*time.Minute {
			n.t.Fatalf("%s: exit %d after 3 minutes\n%s", what, code, out)
		}
	}
}

// dropIn is what makes the new containerd fail where it is started.
const dropIn = "/etc/systemd/system/containerd.service.d/trouble.conf"

// trouble has a command run before the new containerd, and never before the old.
func (n *fallen) trouble(command string) {
	n.t.Helper()
	must(n.t, n.m.WriteFile(dropIn, []byte("[Service]\nTimeoutStartSec=infinity\nExecStartPre=/bin/sh -c '"+
		`if /usr/local/bin/containerd --version | grep -qF " v2."; then `+command+"; fi'\n"), 0o644))
	sh(n.t, n.m, "systemctl", "daemon-reload")
}

func (n *fallen) noTrouble() {
	n.t.Helper()
	sh(n.t, n.m, "sh", "-c", "rm -f "+dropIn+" && systemctl daemon-reload")
}

// newHangs waits until the new containerd is being started.
const newHangs = `containerd --version | grep -qF " v2." && systemctl show -p SubState containerd | grep -q start-pre`
