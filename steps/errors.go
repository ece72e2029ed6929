package steps

import (
	"errors"
	"slices"
	"strings"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/image/oci"
	"github.com/node-upgrader/node-upgrader/image/trust"
)

// Exit codes of the program: a contract with orchestrators.
const (
	ExitDone       = 0 // done, or nothing to do
	ExitFailed     = 1
	ExitUsage      = 2
	ExitBlocked    = 3 // nothing was changed
	ExitRolledBack = 4 // failed; the node is as it was
	ExitIncomplete = 5 // failed; the rollback is incomplete
)

// BlockedError refuses to start; nothing was changed.
type BlockedError struct{ Blocks []Block }

func (e *BlockedError) Error() string {
	reasons := make([]string, len(e.Blocks))
	for i, b := range e.Blocks {
		reasons[i] = b.Reason
	}
	return strings.Join(reasons, "; ")
}

// RolledBackError is a failure after which the node is as it was before.
type RolledBackError struct{ Err error }

func (e *RolledBackError) Error() string { return e.Err.Error() + " (rolled back)" }
func (e *RolledBackError) Unwrap() error { return e.Err }

// RollbackError is a failure whose rollback failed too; without Err, a rollback
// that was asked for.
type RollbackError struct {
	Err      error
	Rollback error
}

func (e *RollbackError) Error() string {
	if e.Err == nil {
		return "the rollback is incomplete: " + e.Rollback.Error()
	}
	return e.Err.Error() + "; the rollback is incomplete: " + e.Rollback.Error()
}
func (e *RollbackError) Unwrap() []error { return []error{e.Err, e.Rollback} }

// HintError adds what to do: a command to type or a file to read.
type HintError struct {
	Err  error
	Hint string
}

func (e *HintError) Error() string { return e.Err.Error() }
func (e *HintError) Unwrap() error { return e.Err }

// UsageError is a flag or an argument that makes no sense.
type UsageError struct{ Reason string }

func (e *UsageError) Error() string { return e.Reason }

// ExitCode maps an error to the program's exit code.
func ExitCode(err error) int {
	var (
		usage      *UsageError
		blocked    *BlockedError
		rolledBack *RolledBackError
		incomplete *RollbackError
		step       *StepError
		outcome    *OutcomeError
	)
	switch {
	case err == nil:
		return ExitDone
	case errors.As(err, &outcome):
		return outcome.Outcome.Exit
	case errors.As(err, &incomplete):
		return ExitIncomplete
	case errors.As(err, &rolledBack):
		return ExitRolledBack
	case errors.As(err, &usage):
		return ExitUsage
	case errors.As(err, &step) && step.Changed:
		return ExitFailed
	case errors.As(err, &blocked), untrusted(err):
		return ExitBlocked
	default:
		return ExitFailed
	}
}

// untrusted tells of what no step can mend: a bundle that is not what it should
// be, or a key or a signature that does not vouch for it.
func untrusted(err error) bool {
	var bad *image.BadBundleError
	var key *trust.KeyError
	var signature *trust.SignatureError
	return errors.As(err, &bad) || errors.As(err, &key) || errors.As(err, &signature)
}

// Hints returns every hint in err once, outermost first; those of a rollback come
// before those of the failure that it follows. A failure that has none gets one by
// its symptom.
func Hints(err error) []string {
	var hints []string
	add := func(list ...string) {
		for _, h := range list {
			if h != "" && !slices.Contains(hints, h) {
				hints = append(hints, h)
			}
		}
	}
	var walk func(error)
	walk = func(err error) {
		switch e := err.(type) { //nolint:errorlint // it walks the tree itself
		case *BlockedError:
			for _, b := range e.Blocks {
				add(b.Hint)
			}
		case *image.BadBundleError:
			add(e.Hint)
		case *oci.Error:
			add(e.Hint)
		case *trust.KeyError:
			add(e.Hint)
		case *trust.SignatureError:
			add(e.Hint)
		case *OutcomeError:
			add(e.Outcome.Hints...)
		case *HintError:
			add(e.Hint)
		case interface{ Advice() string }: // of packages that do not know this one
			add(e.Advice())
		case *RollbackError:
			walk(e.Rollback)
			walk(e.Err)
			return
		}
		switch e := err.(type) { //nolint:errorlint // as above
		case interface{ Unwrap() error }:
			walk(e.Unwrap())
		case interface{ Unwrap() []error }:
			for _, one := range e.Unwrap() {
				walk(one)
			}
		}
	}
	walk(err)
	switch ExitCode(err) {
	case ExitFailed, ExitRolledBack, ExitIncomplete:
		if len(hints) == 0 {
			hints = append(hints, symptomHint(err))
		}
	}
	return hints
}
