package hostexec_test

import (
	"os"
	"testing"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

func TestProgramOfAProcess(t *testing.T) {
	want, err := os.Executable()
	must(t, err)
	got, err := hostexec.NewFS("/").Program(os.Getpid())
	must(t, err)
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
	fs, root := tree(t, map[string]string{"/proc/7/": ""})
	must(t, os.Symlink(root+"/usr/bin/old (deleted)", root+"/proc/7/exe"))
	if got, err := fs.Program(7); err != nil || got != "/usr/bin/old" {
		t.Errorf("%q %v, want the path that it had", got, err)
	}
}
