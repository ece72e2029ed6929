// Package figures writes what a command measured, also where a goal is missed,
// to out/figures-NAME.json: rows of name, value, unit, goal, holds.
package figures

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Row is one figure. Goal is text such as "<= 1.05"; a figure without a goal
// holds always.
type Row struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Goal  string  `json:"goal"`
	Holds bool    `json:"holds"`
}

// Info is a figure without a goal.
func Info(name string, value float64, unit string) Row {
	return Row{Name: name, Value: value, Unit: unit, Holds: true}
}

// AtMost is a figure that holds up to limit.
func AtMost(name string, value float64, unit string, limit float64) Row {
	return Row{Name: name, Value: value, Unit: unit, Goal: fmt.Sprintf("<= %g", limit), Holds: value <= limit}
}

// AtLeast is a figure that holds from limit on.
func AtLeast(name string, value float64, unit string, limit float64) Row {
	return Row{Name: name, Value: value, Unit: unit, Goal: fmt.Sprintf(">= %g", limit), Holds: value >= limit}
}

// Path is the file of a command's figures, in the checkout's folder out.
func Path(command string) (string, error) {
	mod, err := exec.CommandContext(context.Background(), "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}
	return filepath.Join(filepath.Dir(strings.TrimSpace(string(mod))), "out", "figures-"+command+".json"), nil
}

// Put writes the rows, in place of older ones of the same names. Packages that
// are tested at the same time may call it at once.
func Put(command string, rows ...Row) (err error) {
	path, err := Path(command)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	var all []Row
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(data, &all); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	for _, row := range rows {
		all = slices.DeleteFunc(all, func(r Row) bool { return r.Name == row.Name })
		all = append(all, row)
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // goals have < and >
	e.SetIndent("", "  ")
	if err := e.Encode(all); err != nil {
		return err
	}
	temp := path + ".tmp"
	if err := os.WriteFile(temp, text.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, path)
}
