//go:build e2e

package host

import (
	"fmt"
	"os"
	"testing"
)

// ownerVariable makes this binary the process that tests of leftovers end.
const ownerVariable = "LEFTOVER_TEST"

func TestMain(m *testing.M) {
	Reexec()
	if name := os.Getenv(ownerVariable); name != "" {
		fmt.Fprintln(os.Stderr, ownAHost(name))
		os.Exit(1)
	}
	os.Exit(m.Run())
}
