package image

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const stampName = "stamp.json"

// stamp is what a stage looked like when every byte of it had been checked. A
// stage that still looks so in the same boot holds the same bytes: who changes
// a file cannot set its ctime.
type stamp struct {
	SchemaVersion int              `json:"schemaVersion"`
	BootID        string           `json:"bootID"`
	Files         map[string]looks `json:"files"`    // by path in the bundle
	Upgrader      upgraderLooks    `json:"upgrader"` // the zero value: not known
}

// looks are a file's, without its bytes.
type looks struct {
	Inode uint64 `json:"inode"`
	Size  int64  `json:"size"`
	MTime int64  `json:"mtime"` // nanoseconds since 1970
	CTime int64  `json:"ctime"`
}

// upgraderLooks pair the staged executable with the one it was copied from, so
// that the next run of the same one need not read either.
type upgraderLooks struct {
	Source looks `json:"source"`
	Staged looks `json:"staged"`
}

func looksOf(fi fs.FileInfo) looks {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return looks{}
	}
	return looks{st.Ino, fi.Size(), st.Mtim.Nano(), st.Ctim.Nano()}
}

func allLooks(seen map[string]fs.FileInfo) map[string]looks {
	all := make(map[string]looks, len(seen))
	for name, fi := range seen {
		all[name] = looksOf(fi)
	}
	return all
}

// fits tells whether the files may be trusted for what the stamp says.
func (s stamp) fits(seen map[string]fs.FileInfo, bootID string) bool {
	if s.SchemaVersion != SchemaVersion || bootID == "" || s.BootID != bootID || len(s.Files) != len(seen) {
		return false
	}
	for name, fi := range seen {
		if was, ok := s.Files[name]; !ok || was != looksOf(fi) {
			return false
		}
	}
	return true
}

// readStamp returns the zero stamp, which fits nothing, when there is none that
// can be read: a stamp only saves time.
func readStamp(stage string) stamp {
	f, err := openRegular(filepath.Join(stage, stampName))
	if err != nil {
		return stamp{}
	}
	defer f.Close()
	var s stamp
	if err := json.NewDecoder(f).Decode(&s); err != nil {
		return stamp{}
	}
	return s
}

// write replaces the stage's stamp: after a crash it is the old or the new one.
func (s stamp) write(stage string) error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode stamp: %w", err)
	}
	err = replace(stage, stampName, 0o600, func(f *os.File) error {
		_, err := f.Write(append(data, '\n'))
		return err
	})
	if err != nil {
		return fmt.Errorf("write stamp: %w", err)
	}
	return nil
}
