package steps

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/hostexec/hostexectest"
	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/image/trust"
)

// tinyBundle is a bundle of one file.
func tinyBundle(t *testing.T, content string) *image.Bundle {
	t.Helper()
	dir := t.TempDir()
	manifest := fmt.Sprintf(`{"schemaVersion":1,"architecture":%q,"kubernetesVersion":"v1.36.3",
		"components":[{"name":"kubelet","version":"v1.36.3"}],
		"files":[{"path":"kubelet/kubelet","component":"kubelet","place":"/usr/bin/kubelet","sha256":"%x","size":%d,"mode":"0755"}]}`,
		goruntime.GOARCH, sha256.Sum256([]byte(content)), len(content))
	put(t, filepath.Join(dir, "kubelet/kubelet"), content)
	put(t, filepath.Join(dir, image.ManifestName), manifest)
	return reopen(t, dir)
}

func reopen(t *testing.T, dir string) *image.Bundle {
	t.Helper()
	b, err := image.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func put(t *testing.T, name, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// signWith signs a bundle with a new key and returns the public one.
func signWith(t *testing.T, b *image.Bundle) (public string) {
	t.Helper()
	password := func(bool) ([]byte, error) { return []byte("x"), nil }
	private, pub, err := trust.NewPair(password)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := trust.ParseSigner("key", private, password)
	if err == nil {
		err = image.Sign(t.Context(), b, signer)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(pub)
}

func signatureEnv(t *testing.T, b *image.Bundle) Env {
	t.Helper()
	return Env{
		Host: hostexec.Host{FS: hostexec.NewFS(t.TempDir()), Units: hostexectest.NewUnits()}, Bundle: b, Clock: SystemClock(), Log: slog.New(slog.DiscardHandler),
		Staging: Staging{Upgrader: "/proc/self/exe", BootID: "boot"},
	}
}

func TestCheckSignature(t *testing.T) {
	const given = "/etc/keys/release.pub"
	unsigned, signed := tinyBundle(t, "one"), tinyBundle(t, "two")
	own := signWith(t, signed)
	foreign := signWith(t, tinyBundle(t, "three"))
	tests := []struct {
		name        string
		bundle      *image.Bundle
		flag        string
		given, host string // the keys' files; "" is no file
		want        string // of the error
		by          int
	}{
		{"nothing demanded", unsigned, "", foreign, "", "", 0},
		{"demanded", signed, given, own, "", "", 1},
		{"by the host", signed, "", "", own, "", 1},
		{"by both", signed, given, own, own, "", 2},
		{"one of several", signed, given, foreign + own, "", "", 1},
		{"unsigned", unsigned, given, own, "", "bundle.json.sig: is missing", 0},
		{"unsigned, the host", unsigned, "", "", own, "bundle.json.sig: is missing", 0},
		{"foreign", signed, given, foreign, "", "bundle.json.sig: is not by " + given, 0},
		{"foreign to the host", signed, given, own, foreign, "is not by " + PolicyKeys, 0},
		{"no key", signed, given, "", own, "key " + given + ": is missing on the host", 0},
		{"no key in it", signed, given, "\n", "", "key " + given + ": is empty", 0},
		{"the host's is damaged", signed, "", "", own[:40], "key " + PolicyKeys + ": is not PEM", 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			env := signatureEnv(t, test.bundle)
			env.Options.RequireSignature = test.flag
			for path, content := range map[string]string{given: test.given, PolicyKeys: test.host} {
				if content != "" {
					put(t, filepath.Join(env.Host.FS.Root(), path), content)
				}
			}
			by, err := CheckSignature(env)
			if test.want == "" {
				if err != nil || len(by) != test.by {
					t.Errorf("by %v, %v", by, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || ExitCode(err) != ExitBlocked || len(Hints(err)) == 0 || by != nil {
				t.Errorf("by %v, %v (exit %d, %q), want %q", by, err, ExitCode(err), Hints(err), test.want)
			}
			// copy itself refuses too, and writes nothing.
			before := paths(t, env)
			if err := runCopy(context.Background(), env); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("copy: %v", err)
			}
			if diff := cmp.Diff(before, paths(t, env)); diff != "" {
				t.Errorf("written:\n%s", diff)
			}
		})
	}
}

func paths(t *testing.T, env Env) (all []string) {
	t.Helper()
	err := filepath.WalkDir(env.Host.FS.Root(), func(p string, _ os.DirEntry, err error) error {
		all = append(all, p)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A demand that cannot be read is not taken for none.
func TestPolicyThatCannotBeRead(t *testing.T) {
	b := tinyBundle(t, "one")
	own := signWith(t, b)
	ways := map[string]func(path string) error{
		"a directory":      func(p string) error { return os.Mkdir(p, 0o755) },
		"a dangling link":  func(p string) error { return os.Symlink("/nowhere", p) },
		"others may write": func(p string) error { return errors.Join(os.WriteFile(p, []byte(own), 0o600), os.Chmod(p, 0o666)) },
	}
	for name, make := range ways {
		env := signatureEnv(t, b)
		path := filepath.Join(env.Host.FS.Root(), PolicyKeys)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), make(path)); err != nil {
			t.Fatal(err)
		}
		var bad *trust.KeyError
		if _, err := CheckSignature(env); !errors.As(err, &bad) || bad.Name != PolicyKeys || bad.Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A bundle that was staged unsigned gets its signature; the digest is the same.
func TestCopyAfterSigning(t *testing.T) {
	b := tinyBundle(t, "one")
	env := signatureEnv(t, b)
	env.Record = NewRecord(env.Host.FS, "run")
	copied := func(want bool) {
		t.Helper()
		if state, err := checkCopy(t.Context(), env); err != nil || (state.Phase == Done) != want {
			t.Fatalf("%+v, %v", state, err)
		}
	}
	copied(false)
	if err := runCopy(t.Context(), env); err != nil {
		t.Fatal(err)
	}
	copied(true)
	put(t, filepath.Join(env.Host.FS.Root(), PolicyKeys), signWith(t, b))
	env.Bundle = reopen(t, b.Dir)
	copied(false)
	if err := runCopy(t.Context(), env); err != nil {
		t.Fatal(err)
	}
	copied(true)
	// Later steps read the stage.
	env.Bundle = reopen(t, filepath.Join(env.Host.FS.Root(), Store, strings.TrimPrefix(b.Digest, "sha256:"), "bundle"))
	if by, err := CheckSignature(env); err != nil || len(by) != 1 {
		t.Errorf("by %v, %v", by, err)
	}
}
