// Package link runs commands in a guest over one stream of bytes, as a serial
// line: it needs no network. Serve is the guest's end, Client the other. Any
// number of commands may run at once, each with its own standard streams.
//
// A frame is a kind, the number of a command, a length and that many bytes. Of
// each stream of a command one frame is under way at a time: the receiver
// acknowledges it when it has handed it on. So a command that nobody reads from
// stops, as at a full pipe, and the others do not.
package link

import (
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"sync"
)

// Request is what the guest is to do.
type Request struct {
	// Op is OpExec, OpRead or OpCopy.
	Op string `json:"op"`

	Args []string `json:"args,omitempty"` // OpExec
	Env  []string `json:"env,omitempty"`  // of OpExec, the whole of it
	Dir  string   `json:"dir,omitempty"`  // of OpExec

	Path   string `json:"path,omitempty"`   // of OpRead; of OpCopy the copy
	Source string `json:"source,omitempty"` // of OpCopy
}

// What a Request asks for.
const (
	// OpExec runs a program. Its process group is killed when the caller gives up.
	OpExec = "exec"
	// OpRead writes a file to standard output.
	OpRead = "read"
	// OpCopy copies a file or directory of the guest, and has it on the disk
	// (fsync) at its end.
	OpCopy = "copy"
)

// Reply is how a request ended.
type Reply struct {
	Code  int    `json:"code"` // of a program; 128 + the signal that ended it
	Error string `json:"error,omitempty"`
	Errno int    `json:"errno,omitempty"` // what Error is about, where the kernel said it
	Op    string `json:"op,omitempty"`    // of a PathError
	Path  string `json:"path,omitempty"`
}

type kind byte

const (
	hello  kind = iota + 1 // the guest serves
	start                  // a Request
	stdin                  // data; none is its end
	kill                   // the caller has given up
	stdout                 // data
	stderr                 // data
	end                    // a Reply
	ack                    // of the stream whose kind is the data
)

// Most bytes of a stream in one frame. What goes into the guest is less than its
// terminal's buffer of 4096 bytes: User-Mode Linux may forget to go on when that
// was full.
const (
	chunkOut = 16 << 10
	chunkIn  = 1 << 10
)

type frame struct {
	kind kind
	id   uint32
	data []byte
}

// conn writes frames from several goroutines.
type conn struct {
	mu sync.Mutex
	rw io.ReadWriter
}

func (c *conn) send(k kind, id uint32, data []byte) error {
	b := make([]byte, 9, 9+len(data))
	b[0] = byte(k)
	binary.BigEndian.PutUint32(b[1:], id)
	binary.BigEndian.PutUint32(b[5:], uint32(len(data)))
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.rw.Write(append(b, data...))
	return err
}

func (c *conn) receive() (frame, error) {
	var b [9]byte
	if _, err := io.ReadFull(c.rw, b[:]); err != nil {
		return frame{}, err
	}
	f := frame{kind: kind(b[0]), id: binary.BigEndian.Uint32(b[1:])}
	size := binary.BigEndian.Uint32(b[5:])
	if f.kind < hello || f.kind > ack || size > 1<<20 {
		return f, fmt.Errorf("what came over the line is no frame: % x", b)
	}
	f.data = make([]byte, size)
	_, err := io.ReadFull(c.rw, f.data)
	return f, err
}

// errGone is a stream whose other end has given up.
var errGone = fmt.Errorf("the command has ended: %w", fs.ErrClosed)
