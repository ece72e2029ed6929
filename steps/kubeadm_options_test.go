package steps

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

func TestDryRunIsFound(t *testing.T) {
	for name, tc := range map[string]struct {
		config string
		want   bool
	}{
		"none":             {"kind: UpgradeConfiguration\napply: {patches: {directory: /p}}\n", false},
		"apply":            {"kind: UpgradeConfiguration\napply:\n  dryRun: true\n", true},
		"node, second":     {"kind: Other\n---\nkind: UpgradeConfiguration\nnode: {dryRun: true}\n", true},
		"off":              {"apply: {dryRun: false}\nnode: {dryRun: false}\n", false},
		"not even YAML":    {"\t{", false},
		"of diff or plan ": {"diff: {dryRun: true}\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.WriteFile(filepath.Join(root, "upgrade.yaml"), []byte(tc.config), 0o600); err != nil {
				t.Fatal(err)
			}
			options := KubeadmOptions{Config: "/upgrade.yaml"}
			blocks, err := options.blocks(hostexec.NewFS(root))
			if err != nil || (len(blocks) > 0) != tc.want {
				t.Errorf("%+v, %v; want a block: %v", blocks, err, tc.want)
			}
		})
	}
}
