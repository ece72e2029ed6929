package link

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"syscall"
	"time"
)

// ErrLost is a line that has failed: nothing can be asked of the guest any more.
var ErrLost = errors.New("the line to the guest is gone")

// Client asks a guest's Serve.
type Client struct {
	conn  conn
	ready chan struct{}
	done  chan struct{} // the line is gone

	mu    sync.Mutex
	err   error // why
	last  uint32
	calls map[uint32]*call
}

// call is a command as seen from outside.
type call struct {
	out, err chan []byte // at most one frame of each is under way
	acked    chan struct{}
	reply    chan Reply
}

// Connect starts to read from the line, until that fails.
func Connect(line io.ReadWriter) *Client {
	c := &Client{conn: conn{rw: line}, ready: make(chan struct{}), done: make(chan struct{}), calls: map[uint32]*call{}}
	go c.read()
	return c
}

func (c *Client) read() {
	for {
		f, err := c.conn.receive()
		if err == nil {
			err = c.take(f)
		}
		if err != nil {
			c.mu.Lock()
			c.err = err
			c.mu.Unlock()
			close(c.done)
			return
		}
	}
}

func (c *Client) take(f frame) error {
	if f.kind == hello {
		select {
		case <-c.ready:
			return errors.New("the guest's end has started again")
		default:
			close(c.ready)
			return nil
		}
	}
	c.mu.Lock()
	call := c.calls[f.id]
	c.mu.Unlock()
	if call == nil { // given up
		return nil
	}
	switch f.kind {
	case stdout:
		call.out <- f.data
	case stderr:
		call.err <- f.data
	case ack:
		call.acked <- struct{}{}
	case end:
		var r Reply
		if err := json.Unmarshal(f.data, &r); err != nil {
			return err
		}
		call.reply <- r
	default:
		return fmt.Errorf("unexpected frame of kind %d", f.kind)
	}
	return nil
}

// Ready waits until the guest serves.
func (c *Client) Ready(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-c.done:
		return c.gone()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Client) gone() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("%w: %w", ErrLost, c.err)
}

// Run does a request. A program that exits with any code is no error; what could
// not be started, read or copied is. When ctx ends the program's process group
// is killed and the error is the context's; in and the writers may be in use for a
// moment longer then.
func (c *Client) Run(ctx context.Context, r Request, in io.Reader, out, errs io.Writer) (code int, err error) {
	text, err := json.Marshal(r)
	if err != nil {
		return -1, err
	}
	call := &call{out: make(chan []byte, 1), err: make(chan []byte, 1), acked: make(chan struct{}, 1), reply: make(chan Reply, 1)}
	c.mu.Lock()
	c.last++
	id := c.last
	c.calls[id] = call
	c.mu.Unlock()
	finished := make(chan struct{})
	defer func() {
		close(finished)
		c.mu.Lock()
		delete(c.calls, id)
		c.mu.Unlock()
	}()
	if err := c.conn.send(start, id, text); err != nil {
		return -1, fmt.Errorf("%w: %w", ErrLost, err)
	}
	go c.feed(id, call, in, finished)
	go c.drain(id, stdout, call.out, out, finished)
	go c.drain(id, stderr, call.err, errs, finished)
	// A guest replies when all that was written is acknowledged, that is handed on.
	reply, err := c.wait(ctx, id, call)
	if err != nil {
		return -1, err
	}
	return reply.Code, reply.problem()
}

// wait gives a killed program a moment to be reported.
func (c *Client) wait(ctx context.Context, id uint32, call *call) (Reply, error) {
	select {
	case r := <-call.reply:
		return r, nil
	case <-c.done:
		return Reply{}, c.gone()
	case <-ctx.Done():
	}
	if err := c.conn.send(kill, id, nil); err != nil {
		return Reply{}, errors.Join(ctx.Err(), err)
	}
	select {
	case <-call.reply:
	case <-c.done:
	case <-time.After(3 * time.Second):
	}
	return Reply{}, ctx.Err()
}

func (r Reply) problem() error {
	switch {
	case r.Error == "":
		return nil
	case r.Errno != 0 && r.Path != "":
		return &fs.PathError{Op: r.Op, Path: r.Path, Err: syscall.Errno(r.Errno)}
	}
	return errors.New(r.Error)
}

// feed sends what the program is to read. It does not wait for a reader that
// blocks longer than the program runs.
func (c *Client) feed(id uint32, call *call, in io.Reader, finished <-chan struct{}) {
	if in == nil {
		in = bytes.NewReader(nil)
	}
	buf := make([]byte, chunkIn)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if c.conn.send(stdin, id, buf[:n]) != nil {
				return
			}
			select {
			case <-call.acked:
			case <-finished:
				return
			case <-c.done:
				return
			}
		}
		if err != nil {
			_ = c.conn.send(stdin, id, nil) // the reader notices what is wrong with the line
			return
		}
	}
}

// drain hands on what the program writes. What its writer does not take is
// acknowledged all the same, so that the program goes on.
func (c *Client) drain(id uint32, k kind, from <-chan []byte, to io.Writer, finished <-chan struct{}) {
	for {
		select {
		case data := <-from:
			if to != nil {
				if _, err := to.Write(data); err != nil {
					to = nil
				}
			}
			if c.conn.send(ack, id, []byte{byte(k)}) != nil {
				return // the reader notices what is wrong with the line
			}
		case <-finished:
			return
		case <-c.done:
			return
		}
	}
}
