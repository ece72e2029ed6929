package image

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// askTimeout is generous: it is for a machine that builds other things.
const askTimeout = time.Minute

// versions returns each component's version: the given ones, and for the rest
// what the binaries say, or for another machine's what is expected of them.
// Binaries of one component that differ are an error, as is a component whose
// version cannot be found, or is not the expected one.
func versions(ctx context.Context, o BuildOptions, found []foundBinary) (map[string]string, error) {
	all, err := givenVersions(o.Versions, found)
	if err != nil {
		return nil, err
	}
	expect, err := givenVersions(o.Expect, found)
	if err != nil {
		return nil, err
	}
	for _, b := range found {
		if b.replaced { // nothing is known of it
			delete(expect, b.component)
		}
	}
	if foreign(o.Architecture) {
		for component, v := range expect {
			if all[component] == "" {
				all[component] = v
			}
		}
	}
	if err := askAll(ctx, o.Architecture, found, all); err != nil {
		return nil, err
	}
	for component, v := range expect {
		if all[component] != v {
			return nil, fmt.Errorf("%s says that it is %s, but %s was asked for", component, all[component], v)
		}
	}
	return all, nil
}

func givenVersions(given map[string]string, found []foundBinary) (map[string]string, error) {
	all := map[string]string{}
	for component, v := range given {
		if !slices.ContainsFunc(found, func(b foundBinary) bool { return b.component == component }) {
			return nil, fmt.Errorf("version given for %s, which is not a component", printable(component))
		}
		all[component] = canonical(v)
		if !versionSyntax.MatchString(all[component]) {
			return nil, fmt.Errorf("version %q of %s is not one like v1.2.3", v, component)
		}
	}
	return all, nil
}

// askAll adds to all what the binaries of the other components say.
func askAll(ctx context.Context, arch string, found []foundBinary, all map[string]string) error {
	said := make([]string, len(found))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(workers())
	for i, b := range found {
		if all[b.component] != "" {
			continue
		}
		if foreign(arch) {
			return fmt.Errorf("version of %s: its binary is for %s and cannot be asked on this machine: give the version",
				b.component, arch)
		}
		g.Go(func() (err error) {
			said[i], err = b.version(gctx)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	first := map[string]foundBinary{}
	for i, b := range found {
		if said[i] == "" {
			continue
		}
		if other := all[b.component]; other != "" && other != said[i] {
			return fmt.Errorf("%s is %s, but %s is %s", first[b.component].name, other, b.name, said[i])
		}
		if all[b.component] == "" {
			all[b.component], first[b.component] = said[i], b
		}
	}
	return nil
}

// version asks the binary.
func (b foundBinary) version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.path, b.ask...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/nonexistent", "LC_ALL=C"}
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput() // plugins answer on stderr
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w: %s", strings.Join(cmd.Args, " "), err, firstLine(out))
	}
	m := b.answer.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("ask %s for its version: %q does not tell: give the version of %s",
			strings.Join(cmd.Args, " "), firstLine(out), b.component)
	}
	v := canonical(string(m[1]))
	if !versionSyntax.MatchString(v) {
		return "", fmt.Errorf("ask %s for its version: %q is not one like v1.2.3", strings.Join(cmd.Args, " "), v)
	}
	return v, nil
}

// canonical writes a version as a manifest has it.
func canonical(v string) string {
	if v == "" || strings.HasPrefix(v, "v") {
		return v
	}
	return "v" + v
}

func firstLine(out []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return printable(line)
}

// agree returns the Kubernetes version that all of Kubernetes' own components
// have, and that was asked for if one was.
func agree(all map[string]string, asked string) (string, error) {
	k := all[Kubeadm]
	if all[Kubelet] != k || all[Kubectl] != k {
		return "", fmt.Errorf("kubeadm is %s, kubelet is %s, kubectl is %s: a bundle has one Kubernetes version",
			k, all[Kubelet], all[Kubectl])
	}
	if k == "" {
		return "", errors.New("no Kubernetes version")
	}
	if asked = canonical(asked); asked != "" && asked != k {
		return "", fmt.Errorf("version %s of Kubernetes is asked for, but the components are %s", asked, k)
	}
	return k, nil
}
