package image

import (
	"errors"
	"strings"
)

// ErrNotStaged is returned by FindStaged when the store has no sound stage of
// the bundle.
var ErrNotStaged = errors.New("bundle is not staged")

// BadBundleError says that a bundle is not what its manifest says, or that its
// manifest cannot be used. Nothing was written when it is returned.
type BadBundleError struct {
	File   string // path in the bundle, or "bundle.json"
	Reason string // completes "FILE: …"
	Hint   string // what to do about it; may be empty
}

func (e *BadBundleError) Error() string {
	return "bundle: " + printable(e.File) + ": " + e.Reason
}

// printable quotes what an attacker may have chosen to confuse a terminal.
func printable(s string) string {
	const most = 256
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r > 0x7e && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}

const (
	hintFetchAgain = "the bundle was altered or damaged on its way: fetch or build it again"
	hintBuild      = "make a bundle with: upgrader bundle build --from DIR"
)

func badFile(file, reason string) error {
	return &BadBundleError{File: file, Reason: reason, Hint: hintFetchAgain}
}
