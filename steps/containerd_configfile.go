package steps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"

	"github.com/pelletier/go-toml/v2"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// installedConfig is the configuration as the installed containerd understands
// it. Where that one cannot be asked (it is damaged, it refuses its own
// configuration, or the host's programs cannot be run from here), it is what
// the file says, without the defaults.
func installedConfig(ctx context.Context, host hostexec.Host, d containerdDaemon) (containerdConfig, error) {
	if d.isContainerd() { // who knows what anything else would do
		c, err := dumpConfig(ctx, host, d.binary, d.config)
		var refused *hostexec.CommandError
		if err == nil || !errors.As(err, &refused) || ctx.Err() != nil {
			return c, err
		}
	}
	root, err := readConfigFile(host.FS, d.config, map[string]bool{})
	return containerdConfig{root}, err
}

// readConfigFile reads a configuration and merges its imports over it. A file
// that does not exist is an empty configuration, as it is to containerd.
func readConfigFile(host hostexec.FS, file string, seen map[string]bool) (table, error) {
	if seen[file] {
		return nil, nil
	}
	seen[file] = true
	data, err := host.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var root table
	if err := toml.Unmarshal(data, &root); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	imports, _ := root["imports"].([]any)
	for _, i := range imports {
		pattern, _ := i.(string)
		if !path.IsAbs(pattern) {
			pattern = path.Join(path.Dir(file), pattern)
		}
		files, err := glob(host, pattern)
		if err != nil {
			return nil, fmt.Errorf("import %s: %w", pattern, err)
		}
		for _, f := range files {
			imported, err := readConfigFile(host, f, seen)
			if err != nil {
				return nil, err
			}
			root = merge(root, imported)
		}
	}
	return root, nil
}

// glob finds the files whose last name fits the pattern, sorted.
func glob(host hostexec.FS, pattern string) ([]string, error) {
	entries, err := host.ReadDir(path.Dir(pattern))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		fits, err := path.Match(path.Base(pattern), e.Name())
		if err != nil {
			return nil, err
		}
		if fits {
			out = append(out, path.Join(path.Dir(pattern), e.Name()))
		}
	}
	return out, nil
}

// merge lays one table over another, table by table.
func merge(under, over table) table {
	if under == nil {
		return over
	}
	for name, v := range over {
		a, both := under[name].(map[string]any)
		if b, ok := v.(map[string]any); ok && both {
			under[name] = map[string]any(merge(a, b))
			continue
		}
		under[name] = v
	}
	return under
}
