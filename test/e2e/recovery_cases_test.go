//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/node-upgrader/node-upgrader/test/payload"
)

// recoveries are the cases, one for each section.
func recoveries() []recovery {
	return append(recoveriesOfRuns(), recoveriesOfFiles()...)
}

func recoveriesOfRuns() []recovery {
	const done, undone = "run v1.36.3, done:", "run v1.36.3, rolled back:"
	open := func(n *fallen) string {
		n.begun()
		return n.see("upgrader run --run-id=another")
	}
	fails := func(n *fallen) string {
		n.trouble("echo the new containerd does not start; exit 1")
		n.carried("./upgrader copy $flags")
		return n.see("upgrader run $flags")
	}
	finished := func(n *fallen) string {
		n.carried("./upgrader run $flags")
		return n.do("upgrader status")
	}
	return []recovery{
		{
			title: "First", quick: true, old: true, ends: "no upgrade is running",
			fall: func(n *fallen) string { return n.carried("./upgrader copy $flags") },
		},
		{
			title: "The pod is gone, or the ssh session was cut", ends: done,
			fall: func(n *fallen) string {
				n.trouble("sleep 20")
				n.carried("./upgrader copy $flags")
				cut, said := n.behind("upgrader run $flags")
				n.until(newHangs)
				cut()
				_ = said()
				return n.do("upgrader status")
			},
			after: func(n *fallen, typed string) {
				n.noTrouble()
				if !strings.Contains(typed, "attached to the running unit") {
					n.t.Errorf("it did not go on meanwhile:\n%s", typed)
				}
			},
		},
		{title: "Finish the open run", fall: open, ends: done},
		{title: "Undo all of the open run", quick: true, fall: open, old: true, ends: undone},
		{title: "Keep what it has finished, and close it", quick: true, fall: open, ends: "run v1.36.3, abandoned:"},
		{
			title: "Exit code 4: the step was rolled back", quick: true, fall: fails, old: true,
			ends: "run v1.36.3, failed, the step rolled back:",
			after: func(n *fallen, typed string) {
				n.noTrouble()
				if !strings.Contains(typed, "the new containerd does not start") {
					n.t.Errorf("the journal does not say why:\n%s", typed)
				}
			},
		},
		{
			title: "Try again after a rollback", ends: "run v1.36.3-2, done:", mend: (*fallen).noTrouble,
			fall: func(n *fallen) string {
				_ = fails(n)
				return n.see("upgrader run $flags")
			},
		},
		{
			title: "Exit code 5: the rollback is incomplete", quick: true, old: true, ends: undone,
			fall: func(n *fallen) string {
				n.trouble("chattr +i /usr/local/bin/ctr; exit 1")
				n.carried("./upgrader copy $flags")
				return n.see("upgrader run $flags")
			},
			after: func(n *fallen, _ string) { n.noTrouble() },
		},
		{
			title: "The machine lost power in the middle", ends: done, mend: (*fallen).noTrouble,
			fall: func(n *fallen) string {
				n.trouble("sleep 3600")
				n.carried("./upgrader copy $flags")
				_, said := n.behind("upgrader run $flags")
				n.until(newHangs)
				must(n.t, n.m.Crash())
				_ = said()
				must(n.t, n.m.Boot(n.t.Context()))
				must(n.t, n.c.Wait(n.t.Context()))
				return sh(n.t, n.m, "journalctl", "-b", "-u", "upgrader-recovery", "--no-pager")
			},
		},
		{
			title: "The dead-man's switch has fired", ends: "run v1.36.3-2, done:", mend: (*fallen).noTrouble,
			fall: func(n *fallen) string {
				n.trouble("sleep 3600")
				n.carried("./upgrader copy $flags")
				_, said := n.behind("upgrader run $flags --dead-man-after=15s")
				n.until(newHangs)
				sh(n.t, n.m, "systemctl", "kill", "--kill-whom=main", "--signal=STOP", "upgrader")
				last := said()
				n.until("! systemctl is-active upgrader-deadman.timer upgrader-deadman.service && systemctl is-active containerd")
				return last + n.do("upgrader status")
			},
		},
		{
			title: "The node stays cordoned", old: true, ends: "run v1.36.3, open, step uncordon:",
			fall: func(n *fallen) string {
				n.carried("./upgrader copy $flags && ./upgrader drain $flags")
				return sh(n.t, n.m, "kubectl", "get", "nodes")
			},
			after: func(n *fallen, _ string) {
				if nodes := sh(n.t, n.m, "kubectl", "get", "nodes"); strings.Contains(nodes, "SchedulingDisabled") {
					n.t.Error(nodes)
				}
			},
		},
		{
			title: "The kubelet misbehaves, days later", ends: "run v1.36.3, rolled back in part:", fall: finished,
			after: func(n *fallen, _ string) { n.kubelet(true) },
		},
		{title: "containerd misbehaves, days later", old: true, ends: undone, fall: finished},
		{
			title: "The whole control plane has to go back", whole: true, old: true, ends: undone,
			fall: func(n *fallen) string {
				n.flags = "--ignore-preflight-errors=SystemVerification"
				must(n.t, n.payload.ImportImages(n.t.Context(), n.m))
				sh(n.t, n.m, "kubectl", "create", "configmap", "before")
				n.carried("./upgrader run $flags")
				sh(n.t, n.m, "kubectl", "create", "configmap", "after")
				return n.see("upgrader rollback")
			},
			after: func(n *fallen, _ string) {
				sh(n.t, n.m, "sh", "-ec", "kubectl get configmap before; ! kubectl get configmap after; kubectl get nodes; kubectl get nodes | grep -F v1.35.")
			},
		},
		{
			title: "The API server does not come back", old: true, ends: undone,
			fall: func(n *fallen) string {
				n.begun()
				sh(n.t, n.m, "kubectl", "delete", "pod", "--selector=app=workload-cp")
				must(n.t, n.c.Wait(n.t.Context()))
				sh(n.t, n.m, "systemd-run", "--unit=trouble", "sh", "-c", killsAPIServer)
				n.until("! kubectl get --raw=/livez --request-timeout=3s")
				return n.see("kubectl get nodes; upgrader rollback")
			},
		},
	}
}

// killsAPIServer lets none live beside the new containerd.
const killsAPIServer = `while /usr/local/bin/containerd --version | grep -qF " v2."; do kill -KILL $(pgrep -x kube-apiserver) 2>/dev/null; sleep 0.3; done`

// kubelet fails unless the kubelet that lies there and runs is the old one, or
// is not.
func (n *fallen) kubelet(old bool) {
	n.t.Helper()
	out := sh(n.t, n.m, "sh", "-ec", `sha256sum < /usr/bin/kubelet; sha256sum < /proc/$(systemctl show -P MainPID kubelet)/exe; head -c -1 /root/upgrade/bundle/kubelet/kubelet | sha256sum`)
	is := strings.Fields(out)
	if is[0] != is[2] || (is[0] == is[4]) != old {
		n.t.Errorf("the kubelet is the old one: want %v\n%s", old, out)
	}
}

func recoveriesOfFiles() []recovery {
	const done = "run v1.36.3, done:"
	const manifest, moved = "/etc/kubernetes/manifests/kube-scheduler.yaml", "/etc/kubernetes/tmp/kubeadm-backup-manifests-2026-11-21-10-57-12"
	return []recovery{
		{
			title: "A manifest is missing in /etc/kubernetes/manifests", ends: done,
			fall: func(n *fallen) string {
				n.carried("./upgrader copy $flags")
				sh(n.t, n.m, "sh", "-ec", "mkdir -p "+moved+"; mv "+manifest+" "+moved)
				return n.see("ls " + manifest)
			},
			after: func(n *fallen, _ string) {
				sh(n.t, n.m, "sh", "-ec", "rm -r "+moved+"; grep -q kube-scheduler "+manifest)
			},
		},
		{
			title: "A program has been changed since", old: true, ends: "run v1.36.3, rolled back:",
			fall: func(n *fallen) string {
				n.begun()
				sh(n.t, n.m, "sh", "-ec", "cd /usr/local/sbin; head -c 100000 runc > runc.new; chmod 755 runc.new; mv runc.new runc")
				return n.see("upgrader rollback")
			},
		},
		{
			title: "The journal is damaged", ends: done,
			fall: func(n *fallen) string {
				n.begun()
				sh(n.t, n.m, "sh", "-ec", "cp /var/lib/upgrader/runs/v1.36.3/journal.jsonl /root/; sed -i '7s/.*/garbage/' /var/lib/upgrader/runs/v1.36.3/journal.jsonl")
				return n.see("upgrader run $flags")
			},
			after: func(n *fallen, _ string) {
				n.do("upgrader rollback")
				sh(n.t, n.m, "sh", "-ec", "cd /var/lib/upgrader/runs; rm -r v1.36.3; mv /root/v1.36.3 .; mv /root/journal.jsonl v1.36.3/")
			},
		},
		{
			title: "The journal is of a newer upgrader", ends: done,
			fall: func(n *fallen) string {
				must(n.t, n.m.CopyIn(newerUpgrader(n.t), "/root/upgrade/newer"))
				n.carried("./newer copy $flags && ./newer containerd $flags")
				_, out := n.shell("exec 2>&1\n/root/upgrade/upgrader run --run-id=v1.36.3")
				return out
			},
		},
		{
			title: "The disk is full", ends: done,
			fall: func(n *fallen) string {
				sh(n.t, n.m, "sh", "-ec", "rm -rf /var/lib/upgrader; mkdir /var/lib/upgrader; mount -t tmpfs -o size=1500m tmpfs /var/lib/upgrader")
				n.carried("./upgrader copy $flags")
				sh(n.t, n.m, "sh", "-c", "head -c 1500M /dev/zero > /var/lib/upgrader/full 2>/dev/null || true")
				return n.see("upgrader run $flags")
			},
			mend: func(n *fallen) { sh(n.t, n.m, "rm", "/var/lib/upgrader/full") },
			after: func(n *fallen, _ string) {
				n.do("upgrader rollback")
				sh(n.t, n.m, "umount", "/var/lib/upgrader")
			},
		},
		{
			title: "A file or a file system cannot be written", ends: done,
			fall: func(n *fallen) string {
				n.carried("./upgrader copy $flags")
				sh(n.t, n.m, "sh", "-ec", "chattr +i /usr/local/bin/containerd; mount --bind /usr/local/sbin /usr/local/sbin; mount -o remount,ro,bind /usr/local/sbin")
				return n.see("upgrader run $flags")
			},
			after: func(n *fallen, _ string) { sh(n.t, n.m, "umount", "--lazy", "/usr/local/sbin") },
		},
		{
			title: "Two kubelets on one host", ends: done,
			fall: func(n *fallen) string {
				n.carried("./upgrader copy $flags")
				sh(n.t, n.m, "cp", "/usr/bin/kubelet", "/usr/local/bin/kubelet")
				return n.see("upgrader run $flags")
			},
			after: func(n *fallen, _ string) { sh(n.t, n.m, "rm", "/usr/local/bin/kubelet") },
		},
		{
			title: "The staged bundle is damaged", ends: done,
			fall: func(n *fallen) string {
				n.carried("./upgrader copy $flags")
				sh(n.t, n.m, "sh", "-ec", "printf X | dd of=$(echo /var/lib/upgrader/bundles/*/bundle/kubelet/kubelet) bs=1 seek=4096 conv=notrunc")
				return n.see("upgrader containerd $flags")
			},
		},
		{
			title: "The upgrader cannot be started at all", old: true, ends: "run v1.36.3, done:",
			fall: func(n *fallen) string {
				n.carried("./upgrader run $flags")
				sh(n.t, n.m, "rm", "-r", "/var/lib/upgrader/bundles")
				return n.see("upgrader status")
			},
			after: func(n *fallen, _ string) {
				n.kubelet(true)
				must(n.t, n.m.Crash())
				must(n.t, n.m.Boot(n.t.Context()))
				must(n.t, n.c.Wait(n.t.Context()))
				n.carried("./upgrader copy $flags")
			},
		},
	}
}

// newerUpgrader is this very program with a journal of the next schema.
func newerUpgrader(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	must(t, err)
	file := filepath.Join(root, "steps", "journal.go")
	source, err := os.ReadFile(file)
	must(t, err)
	const line = "const journalSchema = 1\n"
	if !strings.Contains(string(source), line) {
		t.Fatalf("%s has no line %q", file, line)
	}
	newer := strings.Replace(string(source), line, "const journalSchema = 2\n", 1)
	must(t, os.WriteFile(filepath.Join(dir, "journal.go"), []byte(newer), 0o600))
	overlay := `{"Replace": {"` + file + `": "` + filepath.Join(dir, "journal.go") + `"}}`
	must(t, os.WriteFile(filepath.Join(dir, "overlay.json"), []byte(overlay), 0o600))
	out := filepath.Join(dir, filepath.Base(payload.NodeUpgrader))
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-overlay", filepath.Join(dir, "overlay.json"), "-o", out, "./cmd/upgrader")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build a newer upgrader: %v\n%s", err, text)
	}
	return out
}
