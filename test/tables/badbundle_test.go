package tables

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps"
	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/skeleton"
)

// badBundle is one way in which a bundle is not what it should be.
type badBundle struct {
	name  string
	names string // what the refusal has to name
	spoil func(n badNode) error
}

// badNode is a node that demands a signature, and its bundle.
type badNode struct {
	dir, bundle, policy string
	release, foreign    keyPair
}

func (n badNode) file(name string) string { return filepath.Join(n.bundle, filepath.FromSlash(name)) }

// TestBadBundles gives a node that demands a signature a signed bundle with one
// thing wrong, and runs the copy step: it refuses with exit code 3, by name, says
// what to do, and has announced and made no change of the host.
func TestBadBundles(t *testing.T) {
	scratch, err := skeleton.Scratch()
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(scratch) })
	fresh := badNode{dir: filepath.Join(scratch, "fresh"), release: newKeyPair(t), foreign: newKeyPair(t)}
	synctest.Test(t, func(t *testing.T) {
		_, err := skeleton.New(fresh.dir, steps.Worker, "")
		must(t, err)
	})
	fresh.bundle, fresh.policy = filepath.Join(fresh.dir, "bundle"), filepath.Join(fresh.dir, "root", steps.PolicyKeys)
	must(t, signBundle(fresh.bundle, fresh.release))
	must(t, os.MkdirAll(filepath.Dir(fresh.policy), 0o755))
	must(t, os.WriteFile(fresh.policy, fresh.release.public, 0o644))

	all := append(badFiles(t, fresh), badWholes(fresh)...)
	refused := 0
	good := fresh
	good.dir = filepath.Join(scratch, "good")
	must(t, skeleton.Clone(fresh.dir, good.dir))
	if err := good.copy(t); err != nil {
		t.Fatalf("as it is, it is refused: %v", err)
	}
	for i, bad := range all {
		t.Run(bad.name, func(t *testing.T) {
			n := fresh
			n.dir = filepath.Join(scratch, fmt.Sprint(i))
			must(t, skeleton.Clone(fresh.dir, n.dir))
			n.bundle, n.policy = filepath.Join(n.dir, "bundle"), filepath.Join(n.dir, "root", steps.PolicyKeys)
			must(t, bad.spoil(n))
			before := n.tree(t)
			err := n.copy(t)
			switch {
			case err == nil:
				t.Fatal("it was copied")
			case steps.ExitCode(err) != steps.ExitBlocked:
				t.Errorf("exit code %d: %v", steps.ExitCode(err), err)
			case !strings.Contains(err.Error(), bad.names):
				t.Errorf("%v: does not name %s", err, bad.names)
			case len(steps.Hints(err)) == 0:
				t.Errorf("%v: says nothing of what to do", err)
			}
			if diff := before.Diff(n.tree(t)); diff != "" {
				t.Errorf("written:\n%s", diff)
			}
			if !t.Failed() {
				refused++
			}
			must(t, os.RemoveAll(n.dir))
		})
	}
	for _, r := range []figures.Row{
		figures.AtLeast("bad_bundles", float64(len(all)), "", 100),
		figures.AtLeast("bad_bundles_refused", float64(refused), "", float64(len(all))),
	} {
		fmt.Printf("%s=%v\n", r.Name, r.Value)
		must(t, figures.Put("bundle", r))
	}
}

// copy is the copy step as the program does it: the bundle is opened, the whole
// node is looked at, and the step is run.
func (n badNode) copy(t *testing.T) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		seen := &changes{}
		node, opened := skeleton.Open(n.dir, seen)
		must(t, opened)
		var env steps.Env
		if env, err = node.Env(options()); err != nil {
			return
		}
		_, err = steps.Runner{Env: env, Plan: steps.Plan(options())}.Run(t.Context(), "copy")
		if err != nil && len(seen.made) > 0 {
			t.Errorf("refused after %v", seen.made)
		}
	})
	return err
}

func (n badNode) tree(t *testing.T) skeleton.Tree {
	t.Helper()
	node, err := skeleton.Open(n.dir, nil)
	must(t, err)
	tree, err := node.TreeOf(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC))
	must(t, err)
	return tree
}

// changes are all that was announced, but for questions.
type changes struct{ made []hostexec.Effect }

func (c *changes) Before(e hostexec.Effect) error {
	if e.Op != skeleton.OpAsk {
		c.made = append(c.made, e)
	}
	return nil
}

func (c *changes) After(hostexec.Effect, error) {}

// badFiles are every file of the bundle in turn, its manifest and its signature
// among them, spoiled in every way.
func badFiles(t *testing.T, n badNode) (all []badBundle) {
	t.Helper()
	b, err := image.Open(n.bundle)
	must(t, err)
	names := []string{image.ManifestName, image.SignatureName}
	for _, f := range b.Manifest.Files {
		names = append(names, f.Path)
	}
	ways := map[string]func(path string) error{
		"a bit flipped": func(p string) error {
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			data[len(data)/2] ^= 1
			return os.WriteFile(p, data, 0o755) //nolint:gosec // a program
		},
		"missing":   os.Remove,
		"truncated": func(p string) error { return os.Truncate(p, 5) },
		"longer": func(p string) error {
			f, err := os.OpenFile(p, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString("more")
			return errors.Join(err, f.Close())
		},
		"a symbolic link": func(p string) error {
			return errors.Join(os.Rename(p, outside(p)), os.Symlink(outside(p), p))
		},
		"hard-linked outside": func(p string) error { return os.Link(p, outside(p)) },
		"a device": func(p string) error {
			return errors.Join(os.Remove(p), syscall.Mknod(p, syscall.S_IFCHR|0o644, 1<<8|5)) // /dev/zero
		},
		"a pipe":        func(p string) error { return errors.Join(os.Remove(p), syscall.Mkfifo(p, 0o644)) },
		"a directory":   func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o755)) },
		"of a gigabyte": func(p string) error { return os.Truncate(p, 1<<30) },
	}
	for _, name := range names {
		for way, spoil := range ways {
			all = append(all, badBundle{name + " " + way, name, func(n badNode) error { return spoil(n.file(name)) }})
		}
	}
	return all
}

// outside is a place for a file that is not in the bundle.
func outside(path string) string {
	dir, _, _ := strings.Cut(path, "/bundle/")
	return filepath.Join(dir, "outside")
}

// badWholes are the other ways.
func badWholes(n badNode) []badBundle {
	sig, manifest := image.SignatureName, image.ManifestName
	rewrite := func(old, new string) func(badNode) error { // and signed by the right key
		return func(n badNode) error {
			data, err := os.ReadFile(n.file(manifest))
			if err != nil {
				return err
			}
			if !bytes.Contains(data, []byte(old)) {
				return fmt.Errorf("no %s in the manifest", old)
			}
			data = bytes.Replace(data, []byte(old), []byte(new), 1)
			line, err := n.release.signer.Sign(data)
			return errors.Join(err, os.WriteFile(n.file(manifest), data, 0o644), os.WriteFile(n.file(sig), line, 0o644)) //nolint:gosec // not secret
		}
	}
	policy := func(data ...[]byte) func(badNode) error {
		return func(n badNode) error { return os.WriteFile(n.policy, bytes.Join(data, nil), 0o644) } //nolint:gosec // public
	}
	year := func(y int) time.Time { return time.Date(y, 1, 1, 0, 0, 0, 0, time.UTC) } // it is 2030
	return []badBundle{
		{"surplus file", "kubelet/zot", func(n badNode) error { return os.WriteFile(n.file("kubelet/zot"), nil, 0o600) }},
		{"surplus link", "zot", func(n badNode) error { return os.Symlink("/etc", n.file("zot")) }},
		{"surplus directory", "zot", func(n badNode) error { return os.Mkdir(n.file("zot"), 0o755) }},
		{"a path that climbs", "kubelet/../../kubelet", rewrite(`"kubelet/kubelet"`, `"kubelet/../../kubelet"`)},
		{"an absolute path", "/etc/kubelet", rewrite(`"kubelet/kubelet"`, `"/etc/kubelet"`)},
		{"a place that climbs", "kubelet/kubelet", rewrite(`"/usr/bin/kubelet"`, `"/usr/bin/../../etc/kubelet"`)},
		{"set-id", "set-id", rewrite(`"0755"`, `"4755"`)},
		{"another architecture", "s390x", rewrite(`"architecture":"`+runtime.GOARCH+`"`, `"architecture":"s390x"`)},
		{"no architecture", "pdp11", rewrite(`"architecture":"`+runtime.GOARCH+`"`, `"architecture":"pdp11"`)},
		{"another sha256, signed", "kubelet/kubelet", func(n badNode) error {
			b, err := image.Open(n.bundle)
			if err != nil {
				return err
			}
			f, _ := b.File(image.Kubelet, "kubelet")
			return rewrite(f.SHA256, strings.Repeat("0", 64))(n)
		}},
		{"a newer schema", "schema version 99", rewrite(`"schemaVersion":1`, `"schemaVersion":99`)},
		{"signed by a foreign key", sig, func(n badNode) error { return signBundle(n.bundle, n.foreign) }},
		{"a foreign key demanded", sig, policy(n.foreign.public)},
		{"signature of another bundle", sig, func(n badNode) error {
			line, err := n.release.signer.Sign([]byte("{}"))
			return errors.Join(err, os.WriteFile(n.file(sig), line, 0o644)) //nolint:gosec // not secret
		}},
		{"signature of before a change", sig, func(n badNode) error {
			data, err := os.ReadFile(n.file(manifest))
			return errors.Join(err, os.WriteFile(n.file(manifest), append(data, ' '), 0o644)) //nolint:gosec // not secret
		}},
		{"an expired certificate demanded", "expired at 2025-01-01", policy(n.release.certificate(year(2024)))},
		{"a certificate of tomorrow demanded", "not valid before 2031-01-01", policy(n.release.certificate(year(2031)))},
		{"an expired certificate beside a foreign key", sig, policy(n.release.certificate(year(2024)), n.foreign.public)},
		{"no key demanded, but a file for it", steps.PolicyKeys, policy()},
		{"the demanded key is damaged", steps.PolicyKeys, policy(n.release.public[:60])},
		{"the demanded key may be written by all", steps.PolicyKeys, func(n badNode) error { return os.Chmod(n.policy, 0o666) }},
	}
}
