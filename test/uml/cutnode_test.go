//go:build e2e

package uml

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps"
	"github.com/node-upgrader/node-upgrader/test/host"
)

// services are the files that change together.
func services() map[string][]string {
	return map[string][]string{
		"containerd": {"/usr/local/bin/containerd", "/usr/local/bin/containerd-shim-runc-v2", "/usr/local/bin/ctr", "/usr/local/sbin/runc"},
		"kubelet":    {"/usr/bin/kubelet", "/usr/bin/kubectl"},
	}
}

// wanted are the bundle's digests by place; what it does not change stays.
func (c *cuts) wanted() map[string]string {
	want := maps.Clone(c.old)
	for _, f := range c.bundle.Manifest.Files {
		if f.Component != image.Kubeadm {
			want[f.Place] = f.SHA256
		}
	}
	return want
}

// digests are those of the node's programs.
func (c *cuts) digests(m *Machine) map[string]string {
	c.t.Helper()
	found := map[string]string{}
	for line := range strings.Lines(sh(c.t, m, "sha256sum /usr/local/bin/* /usr/local/sbin/* /usr/bin/kube* /opt/cni/bin/*")) {
		f := strings.Fields(line)
		found[f[1]] = f[0]
	}
	return found
}

// consistent is what has to be true of a node that has booted after a cut.
func (c *cuts) consistent(m *Machine) {
	t := c.t
	t.Helper()
	now := c.digests(m)
	for name, files := range services() {
		isNew, isOld := true, true
		for _, f := range files {
			isNew = isNew && now[f] == c.new[f]
			isOld = isOld && now[f] == c.old[f]
		}
		if !isNew && !isOld {
			t.Errorf("%s: neither all old nor all new: %s", name, c.describe(now, files))
		}
	}
	for file := range c.old {
		if now[file] != c.old[file] && now[file] != c.new[file] {
			t.Errorf("%s is neither the old nor the new one: %q", file, now[file])
		}
	}
	c.services(m)
	if t.Failed() {
		t.Log(sh(t, m, "journalctl -u upgrader-recovery -u containerd -u kubelet --no-pager | tail -n 60; ls -laR /var/lib/upgrader | head -n 80; cat /var/lib/upgrader/runs/*/journal.jsonl"))
	}
}

func (c *cuts) describe(now map[string]string, files []string) string {
	var parts []string
	for _, f := range files {
		what := "another"
		switch now[f] {
		case c.old[f]:
			what = "old"
		case c.new[f]:
			what = "new"
		case "":
			what = "missing"
		}
		parts = append(parts, f+" "+what)
	}
	return strings.Join(parts, ", ")
}

// services have to run, from the files that lie there.
func (c *cuts) services(m *Machine) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	for _, check := range []string{
		"ctr version && cmp /proc/$(systemctl show -P MainPID containerd)/exe /usr/local/bin/containerd",
		"curl -sf http://127.0.0.1:10248/healthz && cmp /proc/$(systemctl show -P MainPID kubelet)/exe /usr/bin/kubelet",
	} {
		for {
			res, err := m.Exec(ctx, host.Command("sh", "-c", check))
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				c.t.Errorf("%v\n%s%s", err, res.Stdout, res.Stderr)
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
}

// atTarget is the end of an upgrade.
func (c *cuts) atTarget(m *Machine) {
	t := c.t
	t.Helper()
	now := c.digests(m)
	for file, want := range c.new {
		if now[file] != want {
			t.Errorf("%s has %s, not the new one", file, now[file])
		}
	}
	var more []string
	for file := range now {
		if _, known := c.new[file]; !known {
			more = append(more, file)
		}
	}
	if slices.Sort(more); len(more) > 0 {
		t.Errorf("files left behind: %v", more)
	}
	c.services(m)
	sh(t, m, nodeUpgrader+" bundle verify "+steps.Store+"/"+strings.TrimPrefix(c.bundle.Digest, "sha256:")+"/bundle")
	if left := sh(t, m, "ls -d "+steps.Store+"/* /etc/systemd/system/"+steps.RecoveryUnit+" 2>/dev/null || true"); strings.Count(left, "\n") > 0 || strings.Contains(left, steps.RecoveryUnit) {
		t.Errorf("left behind: %s", left)
	}
}
