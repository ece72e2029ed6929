package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// sharedSettings are the kernel's settings that belong to no namespace and that
// something on a host may write: the kubelet (vm, kernel.panic*, kernel.keys),
// systemd as PID 1 (fs, kernel.core_pattern, kernel.pid_max), kube-proxy
// (nf_conntrack_max), and this package (fs.inotify).
func sharedSettings() []string {
	return []string{
		"vm/overcommit_memory", "vm/panic_on_oom",
		"kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
		"kernel/core_pattern", "kernel/pid_max",
		"fs/file-max", "fs/nr_open",
		"fs/inotify/max_user_instances", "fs/inotify/max_user_watches",
		"net/netfilter/nf_conntrack_max",
	}
}

// savedSettings is the file kernel.json beside the grounds.
type savedSettings struct {
	BootID string            `json:"bootID"`
	Values map[string]string `json:"values"`
}

// saveKernel writes the present settings to file, unless those from before an
// earlier ground of this boot are there already.
func saveKernel(procSys, file string) error {
	var saved savedSettings
	if data, err := os.ReadFile(file); err == nil {
		if json.Unmarshal(data, &saved) == nil && saved.BootID == bootID() {
			return nil
		}
	}
	saved = savedSettings{BootID: bootID(), Values: map[string]string{}}
	for _, name := range sharedSettings() {
		value, err := os.ReadFile(filepath.Join(procSys, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("save kernel setting: %w", err)
		}
		saved.Values[name] = string(value)
	}
	return writeJSON(file, saved)
}

// raiseLimits makes room for several hosts: all of them are one user's, and one
// control plane takes about 45 inotify instances of usually 128. Without one
// systemd does not start, and the kubelet neither.
func raiseLimits(procSys string) error {
	for name, want := range map[string]int{
		"fs/inotify/max_user_instances": 8192,
		"fs/inotify/max_user_watches":   524288,
	} {
		file := filepath.Join(procSys, name)
		data, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("raise kernel limit: %w", err)
		}
		if now, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil && now >= want {
			continue
		}
		if err := os.WriteFile(file, []byte(strconv.Itoa(want)), 0); err != nil {
			return fmt.Errorf("raise kernel limit: %w", err)
		}
	}
	return nil
}

// restoreKernel puts the settings of file back and removes it. It writes only
// what differs.
func restoreKernel(procSys, file string) error {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var saved savedSettings
	var errs []error
	if err := json.Unmarshal(data, &saved); err != nil {
		errs = append(errs, err)
	}
	if saved.BootID == bootID() {
		for name, value := range saved.Values {
			now, err := os.ReadFile(filepath.Join(procSys, name))
			if err == nil && string(now) != value {
				err = os.WriteFile(filepath.Join(procSys, name), []byte(value), 0)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("restore kernel setting: %w", err))
			}
		}
	}
	return errors.Join(append(errs, os.Remove(file))...)
}

// writeJSON replaces file by rename.
func writeJSON(file string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".tmp", data, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".tmp", file)
}
