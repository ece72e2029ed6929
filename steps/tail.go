package steps

import (
	"bytes"
	"errors"
	"io"
	"os"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// tail reads a growing file line by line.
type tail struct {
	fs     hostexec.FS
	path   string
	offset int64
}

// emit hands out each whole line since the last call; a last line without its
// newline waits for the next.
func (t *tail) emit(line func([]byte)) error {
	f, err := t.fs.Open(t.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, t.offset, 1<<24))
	if err != nil {
		return err
	}
	for {
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			return nil
		}
		line(data[:i])
		data = data[i+1:]
		t.offset += int64(i) + 1
	}
}
