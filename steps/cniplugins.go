package steps

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
)

// cniPluginsStep replaces the CNI plugins that the bundle has, each by a
// rename, in the directory that containerd looks in. Other vendors' plugins lie
// there too: what has another name is never touched, what is newer already is
// left alone. Nothing is restarted, plugins are executed anew each time.
func cniPluginsStep() Step {
	return Step{
		Name: stepCNIPlugins, Short: "replace the CNI plugins",
		Timeout: 2 * time.Minute,
		Check:   checkCNIPlugins, Run: runCNIPlugins, Undo: undoCNIPlugins,
	}
}

// cniLook is what was found of the bundle's plugins.
type cniLook struct {
	replace []placed
	facts   []Fact
}

func lookAtCNIPlugins(ctx context.Context, env Env) (cniLook, error) {
	var l cniLook
	d, err := findContainerd(ctx, env.Host)
	if err != nil {
		return l, err
	}
	config, err := installedConfig(ctx, env.Host, d)
	if err != nil {
		return l, err
	}
	dirs := config.cniDirs()
	l.facts = []Fact{{Name: "CNI plugins", Have: strings.Join(dirs, ", ")}}
	var files []placed
	for _, f := range env.Bundle.ComponentFiles(image.CNIPlugins) {
		dest, err := placeCNIPlugin(env.Host.FS, dirs, f.Name())
		if err != nil {
			return l, err
		}
		files = append(files, placed{File: f, Dest: dest})
	}
	old, err := outdated(ctx, env, files)
	if err != nil {
		return l, err
	}
	want := env.Bundle.Version(image.CNIPlugins)
	for _, f := range old {
		have, alone, err := lookAtPlugin(ctx, env, f, want)
		if err != nil {
			return l, err
		}
		if alone != "" {
			l.facts = append(l.facts, Fact{Name: f.Dest, Have: have + ", " + alone})
			continue
		}
		l.facts = append(l.facts, Fact{Name: f.Dest, Have: have, Want: want})
		l.replace = append(l.replace, f)
	}
	return l, nil
}

// placeCNIPlugin is where a plugin is, else where the first directory would
// have it.
func placeCNIPlugin(host hostexec.FS, dirs []string, name string) (string, error) {
	for _, dir := range dirs {
		p := path.Join(dir, name)
		if there, err := host.Exists(p); err != nil || there {
			return p, err
		}
	}
	return path.Join(dirs[0], name), nil
}

// lookAtPlugin says which version an outdated plugin is, and why it is to be
// left alone, if it is.
func lookAtPlugin(ctx context.Context, env Env, f placed, want string) (have, alone string, err error) {
	if there, err := env.Host.FS.Exists(f.Dest); err != nil || !there {
		return "absent", "", err
	}
	// One program for many plugins, reached by links: replacing what this link
	// points to would replace them all.
	real, err := env.Host.FS.Resolve(f.Dest)
	if err != nil {
		return "", "", err
	}
	if target := env.Host.FS.HostPath(real); path.Base(target) != f.Name() {
		return "a link to " + target, "left alone", nil
	}
	if have, err = pluginVersion(ctx, env, f.Dest); err != nil {
		return "", "", err
	}
	if have != unknownVersion && semver.Compare(have, want) > 0 {
		return have, "newer, left alone", nil
	}
	return have, "", nil
}

const unknownVersion = "unknown"

// pluginBanner is what a plugin prints when it is run by a person. "CNI bridge
// plugin version unknown" is one that was built without a version.
var pluginBanner = regexp.MustCompile(`(?m)^CNI \S+ plugin (?:version )?v?(\d+\.\d+\.\d+\S*)`)

// pluginVersion asks a plugin for its version, such as v1.9.1. The protocol has
// no question for that (its VERSION is the protocol's), but without one a
// plugin says who it is. One that says nothing of the kind is of an unknown
// version.
func pluginVersion(ctx context.Context, env Env, file string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := env.Host.Commands.Run(ctx, hostexec.Command{Argv: []string{file}})
	text := string(out.Stdout) + "\n" + string(out.Stderr)
	var failed *hostexec.CommandError
	switch {
	case errors.As(err, &failed):
		text += "\n" + failed.Stderr
	case err != nil:
		return "", fmt.Errorf("ask %s for its version: %w", file, err)
	}
	if m := pluginBanner.FindStringSubmatch(text); m != nil && semver.IsValid("v"+m[1]) {
		return "v" + m[1], nil
	}
	return unknownVersion, nil
}

func checkCNIPlugins(ctx context.Context, env Env) (State, error) {
	l, err := lookAtCNIPlugins(ctx, env)
	if errors.Is(err, errNoUnit) {
		return State{Phase: Blocked, Blocks: []Block{{Reason: err.Error()}}}, nil
	}
	if err != nil {
		return State{}, err
	}
	state := State{Phase: Done, Facts: l.facts}
	if len(l.replace) > 0 {
		state.Phase, state.Changes = Needed, replaceChanges(l.replace)
	}
	if state.Blocks, err = roomFor(env, l.replace); err != nil {
		return State{}, err
	}
	if len(state.Blocks) > 0 {
		state.Phase = Blocked
	}
	return state, nil
}

func runCNIPlugins(ctx context.Context, env Env) error {
	l, err := lookAtCNIPlugins(ctx, env)
	if err != nil {
		return err
	}
	for _, f := range l.facts {
		if strings.HasSuffix(f.Have, "left alone") {
			env.Log.Warn("left alone", "plugin", f.Name, "have", f.Have)
		}
	}
	blocks, err := roomFor(env, l.replace)
	if err != nil {
		return err
	}
	if len(blocks) > 0 {
		return &BlockedError{Blocks: blocks}
	}
	return install(ctx, env, l.replace)
}
