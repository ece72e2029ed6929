package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/image/download"
	"github.com/node-upgrader/node-upgrader/image/upstream"
	"github.com/node-upgrader/node-upgrader/steps"
)

// validate refuses flags that make no sense together.
func (f *buildFlags) validate(changed func(string) bool) error {
	_, lockErr := os.Stat(f.lock)
	switch {
	case f.out == "":
		return usage("bundle build: --out DIR is needed")
	case f.from == "" && f.kubernetes == "" && lockErr != nil:
		return usage("bundle build: --from DIR or --kubernetes VERSION is needed: there is no %s", f.lock)
	case len(f.architectures) == 0:
		return usage("--arch: want one or more of %s", strings.Join(image.Architectures(), ", "))
	case len(f.architectures) > 1 && len(f.with) > 0:
		return usage("--with: a file is for one architecture: give one --arch")
	}
	for i, arch := range f.architectures {
		if !slices.Contains(image.Architectures(), arch) || slices.Contains(f.architectures[:i], arch) {
			return usage("--arch %q: want one or more of %s", strings.Join(f.architectures, ","), strings.Join(image.Architectures(), ", "))
		}
	}
	for _, flag := range []string{"mirror", "lock", "update-lock", "cache"} {
		if f.from != "" && changed(flag) {
			return usage("--%s: with --from nothing is downloaded", flag)
		}
	}
	return nil
}

// upstream builds from the projects' releases.
func (f *buildFlags) upstream(ctx context.Context, bundle image.BuildOptions, log *slog.Logger) ([]*image.Bundle, error) {
	cache := f.cache
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return nil, &steps.HintError{Err: fmt.Errorf("find the user's cache: %w", err), Hint: "give --cache DIR"}
		}
		cache = filepath.Join(dir, "node-upgrader", "downloads")
	}
	bundles, err := upstream.Build(ctx, upstream.Options{
		Versions: f.asked(), Architectures: f.architectures, Lock: f.lock, Update: f.updateLock, Mirror: f.mirror,
		Download: download.Options{Cache: cache, Log: log, Progress: progress(log, "download")},
		Bundle:   bundle, Out: f.out, Log: log,
	})
	var missing *upstream.MissingVersionsError
	if errors.As(err, &missing) {
		var flags []string
		for _, component := range missing.Components {
			flags = append(flags, f.flagOf(component).name)
		}
		slices.Sort(flags)
		return nil, usage("bundle build: %s needed: %s does not say it", strings.Join(slices.Compact(flags), ", "), f.lock)
	}
	return bundles, err
}

// parseReplaced reads file=path.
func parseReplaced(list []string) (map[string]string, error) {
	replaced := map[string]string{}
	for _, item := range list {
		name, path, ok := strings.Cut(item, "=")
		switch {
		case !ok || path == "":
			return nil, usage("--with %q: want file=path, such as kubelet=PATH", item)
		case !slices.Contains(image.FileNames(), name):
			return nil, usage("--with %q: a bundle has no file %q; it has %s", item, name, strings.Join(image.FileNames(), ", "))
		case replaced[name] != "":
			return nil, usage("--with: %s is given twice", name)
		}
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("--with %s: %w", name, err)
		}
		replaced[name] = path
	}
	return replaced, nil
}

func parseVersions(list []string) (map[string]string, error) {
	versions := map[string]string{}
	for _, item := range list {
		name, v, ok := strings.Cut(item, "=")
		if !ok || name == "" || v == "" {
			return nil, usage("--version %q: want component=version", item)
		}
		versions[name] = v
	}
	return versions, nil
}
