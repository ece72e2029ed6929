package link

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// Serve does what a Client on the other end of the line asks for, until the line
// fails. It announces itself, so a client may be there before it.
func Serve(line io.ReadWriter) error {
	s := &server{conn: conn{rw: line}, jobs: map[uint32]*job{}}
	if err := s.conn.send(hello, 0, nil); err != nil {
		return err
	}
	for {
		f, err := s.conn.receive()
		if err == nil {
			err = s.take(f)
		}
		if err != nil {
			s.end()
			return err
		}
	}
}

type server struct {
	conn conn
	mu   sync.Mutex
	jobs map[uint32]*job
}

// job is a request that is being done.
type job struct {
	id     uint32
	server *server
	in     chan []byte // one frame under way, see feed
	acked  map[kind]chan struct{}
	once   sync.Once
	gone   chan struct{} // the caller has given up
}

func (s *server) take(f frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.kind == start {
		var r Request
		if err := json.Unmarshal(f.data, &r); err != nil {
			return err
		}
		j := &job{
			id: f.id, server: s, in: make(chan []byte, 2), gone: make(chan struct{}),
			acked: map[kind]chan struct{}{stdout: make(chan struct{}, 1), stderr: make(chan struct{}, 1)},
		}
		s.jobs[f.id] = j
		go j.do(r)
		return nil
	}
	j := s.jobs[f.id]
	if j == nil { // has ended
		return nil
	}
	switch f.kind {
	case stdin:
		j.in <- f.data // at most one with data, and the end
	case kill:
		j.giveUp()
	case ack:
		if len(f.data) != 1 || j.acked[kind(f.data[0])] == nil {
			return fmt.Errorf("acknowledges an unknown stream % x", f.data)
		}
		j.acked[kind(f.data[0])] <- struct{}{}
	default:
		return fmt.Errorf("unexpected frame of kind %d", f.kind)
	}
	return nil
}

// end gives up all jobs: nobody waits for them.
func (s *server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		j.giveUp()
	}
}

func (j *job) giveUp() { j.once.Do(func() { close(j.gone) }) }

func (j *job) do(r Request) {
	var reply Reply
	var err error
	switch r.Op {
	case OpExec:
		reply.Code, err = j.exec(r)
	case OpRead:
		err = j.read(r.Path)
	case OpCopy:
		err = durableCopy(r.Source, r.Path)
	default:
		err = fmt.Errorf("unknown request %q", r.Op)
	}
	if err != nil {
		reply.Error = err.Error()
		var path *fs.PathError
		var errno syscall.Errno
		if errors.As(err, &path) && errors.As(err, &errno) {
			reply.Op, reply.Path, reply.Errno = path.Op, path.Path, int(errno)
		}
	}
	text, err := json.Marshal(reply)
	if err == nil {
		err = j.server.conn.send(end, j.id, text)
	}
	_ = err // a line that fails ends Serve
	j.server.mu.Lock()
	delete(j.server.jobs, j.id)
	j.server.mu.Unlock()
}

func (j *job) read(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(writer{j, stdout}, f)
	return err
}

// writer sends one of the job's streams, a frame at a time.
type writer struct {
	job  *job
	kind kind
}

func (w writer) Write(p []byte) (int, error) {
	sent := 0
	for len(p) > 0 {
		n := min(len(p), chunkOut)
		if err := w.job.server.conn.send(w.kind, w.job.id, p[:n]); err != nil {
			return sent, err
		}
		select {
		case <-w.job.acked[w.kind]:
		case <-w.job.gone:
			return sent, errGone
		}
		sent, p = sent+n, p[n:]
	}
	return sent, nil
}

func (j *job) exec(r Request) (int, error) {
	if len(r.Args) == 0 {
		return -1, errors.New("no command")
	}
	cmd := exec.Command(r.Args[0], r.Args[1:]...) //nolint:noctx // its life is the caller's, see gone
	cmd.Env, cmd.Dir = r.Env, r.Dir
	cmd.Stdout, cmd.Stderr = writer{j, stdout}, writer{j, stderr}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return -1, err
	}
	if err := cmd.Start(); err != nil {
		return -1, err
	}
	ended := make(chan struct{})
	go j.feed(in, ended)
	go func() {
		select {
		case <-j.gone:
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		case <-ended:
		}
	}()
	err = cmd.Wait()
	close(ended)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

// feed hands on what the program is to read. What it does not read any more is
// acknowledged all the same.
func (j *job) feed(in io.WriteCloser, ended <-chan struct{}) {
	for {
		select {
		case data := <-j.in:
			if len(data) == 0 {
				_ = in.Close()
				return
			}
			_, _ = in.Write(data) // a closed pipe: it does not want it
			if j.server.conn.send(ack, j.id, []byte{byte(stdin)}) != nil {
				return
			}
		case <-ended:
			return
		}
	}
}
