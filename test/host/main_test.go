//go:build !e2e

package host

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	Reexec()
	os.Exit(m.Run())
}
