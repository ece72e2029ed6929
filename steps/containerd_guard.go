package steps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
)

// containerdGuard is what speaks against a restart of containerd with the new
// version, all of it at once, and what will be done to make it safe.
type containerdGuard struct {
	blocks  []Block
	facts   []Fact
	changes []Change
}

func (g *containerdGuard) block(hint, reason string, args ...any) {
	g.blocks = append(g.blocks, Block{Reason: fmt.Sprintf(reason, args...), Hint: hint})
}

// guardContainerd looks at everything that a restart could break. It changes
// nothing.
func guardContainerd(ctx context.Context, env Env, l containerdLook) (containerdGuard, error) {
	tried, err := triedBefore(env, containerdUnit)
	if err != nil {
		return containerdGuard{}, err
	}
	g := containerdGuard{blocks: append(slices.Clone(l.blocks), tried...)}
	if mode := l.daemon.unit.KillMode; mode != "process" {
		g.block("systemctl edit containerd.service, add [Service] and KillMode=process, then systemctl daemon-reload",
			"%s has KillMode %q: stopping it would kill the containers", containerdUnit, mode)
	}
	if l.notReady != nil && l.version != "" {
		g.block("crictl info", "it has to be ready before, or nobody can tell whether it is afterwards: %v", l.notReady)
	}
	for _, guard := range []func(context.Context, Env, containerdLook) error{
		g.guardVersion, g.guardConfig, g.guardShims,
	} {
		if err := guard(ctx, env, l); err != nil {
			return g, err
		}
	}
	return g, nil
}

func (g *containerdGuard) guardVersion(ctx context.Context, env Env, l containerdLook) error {
	have, want := l.version, wantContainerd(env)
	if have == "" && l.daemon.isContainerd() { // it does not run, or not well
		out, err := ask(ctx, env.Host, l.daemon.binary, "--version")
		if fields := strings.Fields(string(out.Stdout)); err == nil && len(fields) >= 3 {
			have = strings.TrimPrefix(fields[2], "v")
		}
		var refused *hostexec.CommandError
		if err != nil && !errors.As(err, &refused) { // a damaged one may be replaced
			return err
		}
	}
	if have != "" && semver.Compare(semverOf(have), semverOf(want)) > 0 {
		g.block("use a bundle with containerd "+have+" or newer; going back needs a drained node",
			"containerd %s is newer than the bundle's %s, which would lose the pods", have, want)
	}
	version, err := configFileVersion(env.Host.FS, l.daemon.config)
	if err != nil {
		g.block(l.daemon.config, "%v", err)
		return nil
	}
	if bad := []string{"2.2.0", "2.2.1"}; slices.Contains(bad, want) && version == 2 && l.config.mirrors() {
		g.block("https://github.com/containerd/containerd/issues/12612; use a bundle with containerd 2.2.2 or newer",
			"containerd %s does not start CRI with the registry mirrors of %s", want, l.daemon.config)
	}
	return nil
}

// semverOf makes a version comparable, also a distribution's, such as
// 1.6.20~ds1.
func semverOf(v string) string {
	if i := strings.IndexAny(v, "~+ "); i >= 0 {
		v = v[:i]
	}
	return "v" + strings.TrimPrefix(v, "v")
}

// guardConfig has the new containerd read the configuration before the old one
// is stopped.
func (g *containerdGuard) guardConfig(ctx context.Context, env Env, l containerdLook) error {
	binary, err := program(ctx, env, image.Containerd, "containerd")
	if err != nil {
		return err
	}
	config, err := dumpConfig(ctx, env.Host, binary, l.daemon.config)
	if errors.Is(err, hostexec.ErrNotOnHost) {
		g.facts = append(g.facts, Fact{Name: "new containerd's trial", Have: notTried})
		return nil
	}
	var refused *hostexec.CommandError
	if errors.As(err, &refused) && ctx.Err() == nil {
		why := strings.TrimSpace(refused.Stderr)
		if why == "" {
			why = refused.Error()
		}
		reason := "does not accept " + l.daemon.config
		if refused.Code < 0 {
			reason = "cannot be run on this host"
		}
		g.block(fmt.Sprintf("%s --config %s config dump", binary, l.daemon.config),
			"containerd %s %s: %s", wantContainerd(env), reason, why)
		return nil
	}
	if err != nil {
		return err
	}
	// The kubelet takes its cgroup driver from CRI: a key that the new version
	// reads elsewhere would move every new pod to another cgroup tree.
	before, after := l.config.cgroupDriver(), config.cgroupDriver()
	g.facts = append(g.facts, Fact{Name: "cgroup driver", Have: before, Want: before})
	if before != "" && before != after {
		g.block(l.daemon.config+": set SystemdCgroup of the runtime runc where containerd "+wantContainerd(env)+" reads it",
			"the cgroup driver would change from %s to %s", before, after)
	}
	return g.guardSandboxImage(ctx, env, l.config, config)
}

// guardShims looks for containers that the starting containerd would lose.
func (g *containerdGuard) guardShims(ctx context.Context, env Env, l containerdLook) error {
	shims, err := listShims(env.Host.FS, l.stateDir())
	if err != nil {
		return err
	}
	// A shim that cannot be found any more by the path that is recorded for a
	// container makes containerd delete the container's directory.
	users := map[string][]string{}
	for _, s := range shims {
		if path.IsAbs(s.binary) && !slices.ContainsFunc(l.files, func(f placed) bool { return f.Dest == s.binary }) {
			users[s.binary] = append(users[s.binary], s.String())
		}
	}
	for _, binary := range slices.Sorted(maps.Keys(users)) {
		if _, err := env.Host.FS.Stat(binary); errors.Is(err, os.ErrNotExist) {
			g.block("put it back, or restart these pods", "the shim %s is gone, but in use by: %s",
				binary, strings.Join(users[binary], ", "))
		} else if err != nil {
			return err
		}
	}
	helped, hopeless, err := weighLosses(ctx, env, l.stateDir())
	if err != nil {
		return err
	}
	g.changes = append(g.changes, helped...)
	switch {
	case len(hopeless) == 0:
	case env.Options.DrainFirst:
		// What stays on a drained node are static pods and DaemonSets, which
		// the kubelet starts again.
		g.facts = append(g.facts, Fact{Name: "lost at the restart", Have: describeLosses(hopeless)})
	default:
		g.block("run the upgrade with --drain-first: then no workload is affected, and the rest is started again",
			"containerd would throw away at its start: %s", describeLosses(hopeless))
	}
	return nil
}

// How often, and after which pauses, a container is asked for that seems lost: one
// that is being made or removed has no processes for a moment.
const (
	lossLooks = 6
	lossPause = 2 * time.Second
)

// asksAtOnce is how many shims are asked at once: each answer is a run of runc, of
// which a slow machine may do one only in the time that containerd waits.
func asksAtOnce(look int) int {
	if look == 0 {
		return 4
	}
	return 1
}

// weighLosses tells what can be helped of what would be lost, by which change, and
// what cannot, which it looks at again and again.
func weighLosses(ctx context.Context, env Env, stateDir string) (helped []Change, hopeless []loss, err error) {
	for look := range lossLooks {
		if look > 0 {
			if err := env.Clock.Sleep(ctx, lossPause); err != nil {
				return nil, nil, err
			}
		}
		losses, err := findLosses(ctx, env, stateDir, asksAtOnce(look))
		if err != nil {
			return nil, nil, err
		}
		helped, hopeless = nil, nil
		for _, loss := range losses {
			r, err := findRemedy(env, stateDir, loss)
			switch {
			case err == nil:
				helped = append(helped, Change{"move", fmt.Sprintf("%s (%s)", r, loss)})
			case errors.Is(err, errNoRemedy):
				loss.why += "; " + err.Error()
				hopeless = append(hopeless, loss)
			default:
				return nil, nil, err
			}
		}
		if len(hopeless) == 0 || env.Options.DrainFirst {
			break
		}
	}
	return helped, hopeless, nil
}

func describeLosses(losses []loss) string {
	names := make([]string, len(losses))
	for i, l := range losses {
		names[i] = fmt.Sprintf("%s (%s)", l.shim, l.why)
	}
	return strings.Join(names, "; ")
}
