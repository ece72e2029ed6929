package hostexec

import (
	"context"
	"strings"
)

// Effect is one change of the host. It takes place as a whole or, after a crash,
// maybe not: in between is nothing that the next attempt could not do again.
type Effect struct {
	Op string `json:"op"` // OpRename, OpStop, …
	// Object is the host's path with links followed, the unit, or the command
	// line.
	Object string `json:"object,omitempty"`
}

func (e Effect) String() string { return strings.TrimSpace(e.Op + " " + e.Object) }

// What changes there are. Reading is none, and SyncFS, which makes durable what
// was changed before, is none either.
const (
	OpMkdir     = "mkdir"      // a directory, and its parents that were not there
	OpWrite     = "write"      // a temporary file, complete and fsynced: TempOf tells for which file
	OpRename    = "rename"     // a temporary file takes the name of this one
	OpLink      = "link"       // another name for a file, in place of what had this one
	OpSymlink   = "symlink"    // a symbolic link, in place of what had this name
	OpRemove    = "remove"     // a file or an empty directory
	OpRemoveAll = "remove-all" // a tree
	OpAppend    = "append"     // a line to a file
	OpControl   = "control"    // a value to a kernel's control file

	OpStart          = "start"
	OpStop           = "stop"
	OpDaemonReload   = "daemon-reload"
	OpResetFailed    = "reset-failed"
	OpStartTransient = "start-transient"
	OpStartTimer     = "start-timer"
	OpStopTransient  = "stop-transient"
	OpKill           = "kill"

	OpRun = "run" // a command with Changes
)

// Watch is told of every change before and after it is made. A nil Watch is
// told nothing. Its methods are called by whatever goroutine makes the change.
type Watch interface {
	// Before may refuse: the change is not made then, and its error is the
	// operation's own. After is not called.
	Before(Effect) error
	// After is told how the change ended.
	After(Effect, error)
}

// Change makes a change of the host under a watch; w may be nil.
func Change(w Watch, e Effect, change func() error) error {
	if w == nil {
		return change()
	}
	if err := w.Before(e); err != nil {
		return err
	}
	err := change()
	w.After(e, err)
	return err
}

// Watched is the same host with w told of its changes, and of no others' who
// was told before. nil is nobody.
func (h Host) Watched(w Watch) Host {
	h.FS = h.FS.Watched(w)
	if u, ok := h.Units.(watchedUnits); ok {
		h.Units = u.units
	}
	if c, ok := h.Commands.(watchedCommands); ok {
		h.Commands = c.commands
	}
	if w == nil {
		return h
	}
	if h.Units != nil {
		h.Units = watchedUnits{h.Units, w}
	}
	if h.Commands != nil {
		h.Commands = watchedCommands{h.Commands, w}
	}
	return h
}

// Watched is the same file system with w told of its changes.
func (fs FS) Watched(w Watch) FS {
	fs.watch = w
	return fs
}

// Unwatched is the same file system with nobody told of its changes.
func (fs FS) Unwatched() FS { return fs.Watched(nil) }

// change makes a change of a path that is resolved already.
func (fs FS) change(op, real string, change func() error) error {
	return Change(fs.watch, Effect{Op: op, Object: fs.HostPath(real)}, change)
}

// watchedUnits names every method, so that none that is new goes unwatched.
type watchedUnits struct {
	units Units
	watch Watch
}

func (u watchedUnits) change(op, unit string, change func() error) error {
	return Change(u.watch, Effect{Op: op, Object: unit}, change)
}

func (u watchedUnits) Show(ctx context.Context, unit string) (Unit, error) {
	return u.units.Show(ctx, unit)
}

func (u watchedUnits) Start(ctx context.Context, unit string) error {
	return u.change(OpStart, unit, func() error { return u.units.Start(ctx, unit) })
}

func (u watchedUnits) Stop(ctx context.Context, unit string) error {
	return u.change(OpStop, unit, func() error { return u.units.Stop(ctx, unit) })
}

func (u watchedUnits) Reload(ctx context.Context) error {
	return u.change(OpDaemonReload, "", func() error { return u.units.Reload(ctx) })
}

func (u watchedUnits) ResetFailed(ctx context.Context, unit string) error {
	return u.change(OpResetFailed, unit, func() error { return u.units.ResetFailed(ctx, unit) })
}

func (u watchedUnits) StartTransient(ctx context.Context, t Transient) error {
	return u.change(OpStartTransient, t.Name, func() error { return u.units.StartTransient(ctx, t) })
}

func (u watchedUnits) StartTransientTimer(ctx context.Context, t Timer) error {
	return u.change(OpStartTimer, t.Name, func() error { return u.units.StartTransientTimer(ctx, t) })
}

func (u watchedUnits) StopTransient(ctx context.Context, unit string) error {
	return u.change(OpStopTransient, unit, func() error { return u.units.StopTransient(ctx, unit) })
}

func (u watchedUnits) Kill(ctx context.Context, unit string, signal int) error {
	return u.change(OpKill, unit, func() error { return u.units.Kill(ctx, unit, signal) })
}

type watchedCommands struct {
	commands Commands
	watch    Watch
}

func (c watchedCommands) Run(ctx context.Context, cmd Command) (out Output, err error) {
	if !cmd.Changes {
		return c.commands.Run(ctx, cmd)
	}
	err = Change(c.watch, Effect{Op: OpRun, Object: strings.Join(cmd.Argv, " ")}, func() (err error) {
		out, err = c.commands.Run(ctx, cmd)
		return err
	})
	return out, err
}
