package oci

import "fmt"

// Error is something wrong with an image or a registry, with what to do about
// it.
type Error struct {
	Err  error
	Hint string // may be empty
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

const hintFetchAgain = "the image was altered or damaged on its way: fetch or build it again"

// bad is a layout or an archive that is not what it says.
func bad(format string, args ...any) error {
	return &Error{Err: fmt.Errorf(format, args...), Hint: hintFetchAgain}
}
