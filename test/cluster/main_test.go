package cluster

import (
	"os"
	"testing"

	"github.com/node-upgrader/node-upgrader/test/host"
)

func TestMain(m *testing.M) {
	host.Reexec()
	os.Exit(m.Run())
}
