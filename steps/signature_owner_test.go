package steps

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image/trust"
)

// What counts is each directory and link on the way to the keys, and where the
// links end.
func TestKeysAreRootsAlone(t *testing.T) {
	const name = "/etc/keys/demand.pub" // a link through links to /srv/real/release.pub
	tests := map[string]struct {
		foreign, writable string // what lies on the way
		name, want        string
	}{
		"all is root's":              {},
		"the keys are somebody's":    {foreign: "/srv/real/release.pub", want: "/srv/real/release.pub belongs to the user 1234"},
		"others may write them":      {writable: "/srv/real/release.pub", want: "/srv/real/release.pub may be written"},
		"the link is somebody's":     {foreign: "/etc/keys/demand.pub", want: "/etc/keys/demand.pub belongs"},
		"its directory is":           {foreign: "/etc/keys", want: "/etc/keys belongs"},
		"others may write there":     {writable: "/etc/keys", want: "/etc/keys may be written"},
		"a link on the way is":       {foreign: "/srv/current", want: "/srv/current belongs"},
		"where it leads, others may": {writable: "/srv/real", want: "/srv/real may be written"},
		"above, others may":          {writable: "/srv", want: "/srv may be written"},
		"beside the way, others may": {writable: "/srv/other"},
		"a loop":                     {name: "/etc/loop", want: "too many links"},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			root := t.TempDir()
			put(t, filepath.Join(root, "srv/real/release.pub"), "key")
			put(t, filepath.Join(root, "srv/other/file"), "")
			put(t, filepath.Join(root, "etc/keys/file"), "")
			for link, text := range map[string]string{"etc/keys/demand.pub": "../../srv/./current/release.pub", "srv/current": "/srv/real", "etc/loop": "/etc/loop"} {
				if err := os.Symlink(text, filepath.Join(root, link)); err != nil {
					t.Fatal(err)
				}
			}
			var foreign fs.FileInfo
			var err error
			if test.foreign != "" {
				foreign, err = os.Lstat(filepath.Join(root, test.foreign))
			}
			if test.writable != "" {
				err = os.Chmod(filepath.Join(root, test.writable), 0o775)
			}
			if err != nil {
				t.Fatal(err)
			}
			if test.name == "" {
				test.name = name
			}
			err = onlyRoots(hostexec.NewFS(root), test.name, func(info fs.FileInfo) uint32 {
				if foreign != nil && os.SameFile(info, foreign) {
					return 1234
				}
				return ownerOf(info)
			})
			var bad *trust.KeyError
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
			} else if !errors.As(err, &bad) || bad.Name != test.name || bad.Hint == "" || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// The owner is the file's own; for root, CheckSignature refuses keys of another.
func TestPolicyOfAnotherUser(t *testing.T) {
	b := tinyBundle(t, "one")
	env := signatureEnv(t, b)
	file := filepath.Join(env.Host.FS.Root(), PolicyKeys)
	put(t, file, signWith(t, b))
	want := uint32(os.Getuid())
	env.Bundle = reopen(t, b.Dir)
	if want == 0 {
		want = 1234
		if err := os.Chown(file, int(want), -1); err != nil {
			t.Fatal(err)
		}
		var bad *trust.KeyError
		if _, err := CheckSignature(env); !errors.As(err, &bad) || bad.Name != PolicyKeys {
			t.Errorf("%v", err)
		}
	} else if _, err := CheckSignature(env); err != nil {
		t.Error(err)
	}
	if info, err := os.Lstat(file); err != nil || ownerOf(info) != want {
		t.Errorf("owner %d, %v", ownerOf(info), err)
	}
}
