package uml

import (
	"context"
	"net"

	"github.com/node-upgrader/node-upgrader/test/host"
)

// DialContext connects to an address inside the machine, over the line and by
// its socat. It is for a client of the API server, and slow.
func (m *Machine) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	if _, err := m.running(); err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		// What went wrong is seen as the end of the connection.
		_, _ = m.Exec(life, host.Cmd{Args: []string{"socat", "-", "TCP:" + address}, Stdin: far, Stdout: far})
		far.Close()
	}()
	return conn{near, end}, nil
}

type conn struct {
	net.Conn
	end context.CancelFunc
}

func (c conn) Close() error {
	c.end()
	return c.Conn.Close()
}
