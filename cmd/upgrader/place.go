package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps"
)

// imageBundle is where the image has its bundle.
const imageBundle = "/bundle"

// terminationLog is where the kubelet reads a container's last word.
const terminationLog = "/dev/termination-log"

// place is where this process stands.
type place struct {
	// container: the host is seen through /proc/1/root.
	container bool
}

// root is where the host's "/" is.
func (p place) root() string {
	if p.container {
		return "/proc/1/root"
	}
	return "/"
}

// findPlace finds out whether this process is on the host already.
func findPlace() (place, error) {
	if os.Geteuid() != 0 {
		return place{}, &steps.BlockedError{Blocks: []steps.Block{{Reason: "the upgrader works on the host: it has to be root", Hint: "run it with sudo"}}}
	}
	if os.Getpid() == 1 {
		return place{}, &steps.BlockedError{Blocks: []steps.Block{{
			Reason: "the container does not see the host's processes",
			Hint:   "set hostPID: true and privileged: true (upgrader manifests pod)",
		}}}
	}
	onHost, err := hostexec.InHostMountNamespace()
	if err != nil {
		return place{}, err
	}
	return place{container: !onHost}, nil
}

// enter moves a process of a container onto the host, with the image's bundle
// and the container's termination message as open descriptors. It returns only
// when there is nothing to do, or with an error.
func (p place) enter(c config) error {
	if !p.container {
		return nil
	}
	if os.Getenv(enteredEnv) != "" {
		return errors.New("enter the host: the namespace is still another than process 1's")
	}
	env := hostexec.WithEnv(os.Environ(), enteredEnv+"=1",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root")
	var keep []*os.File
	dir := c.bundle
	if dir == "" {
		dir = imageBundle
	}
	open := func(path, variable string, flag int) error {
		f, err := os.OpenFile(path, flag, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		keep = append(keep, f)
		env = hostexec.WithEnv(env, variable+"="+strconv.Itoa(int(f.Fd())))
		return nil
	}
	if err := errors.Join(open(dir, bundleFD, os.O_RDONLY), open(terminationLog, terminationFD, os.O_WRONLY)); err != nil {
		return err
	}
	return hostexec.Enter(1, os.Args, env, keep...)
}

// bundleDir is where the bundle of this process is: as given, of the image, or
// the one that this program was staged with.
func bundleDir(c config) (string, error) {
	if dir := fdPath(bundleFD); dir != "" {
		return dir, nil
	}
	if c.bundle != "" {
		return filepath.Abs(c.bundle)
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	candidates := []string{filepath.Join(filepath.Dir(self), "bundle"), imageBundle}
	for _, dir := range candidates {
		if _, err := os.Stat(filepath.Join(dir, "bundle.json")); err == nil {
			return dir, nil
		}
	}
	return "", &steps.UsageError{Reason: fmt.Sprintf("no bundle in %s or %s: name its directory with --bundle", candidates[0], candidates[1])}
}
