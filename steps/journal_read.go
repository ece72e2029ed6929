package steps

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// readJournal reads and checks a journal, and changes nothing: its history, its
// whole lines, and whether something torn follows them. One that is not there
// has an empty history. One that is damaged, or of a newer schema, is a
// *BlockedError.
func readJournal(fs hostexec.FS, path string) (h History, whole []byte, torn bool, err error) {
	data, err := fs.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return h, nil, false, nil
	}
	if err != nil {
		return h, nil, false, err
	}
	for rest := data; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil || !ended {
			if len(after) > 0 {
				return h, whole, false, damaged(path, h.Seq+1, "is no JSON object")
			}
			return h, whole, true, nil
		}
		switch {
		case e.Schema > journalSchema:
			return h, whole, false, &BlockedError{Blocks: []Block{{
				Reason: fmt.Sprintf("%s was written by a newer upgrader (schema %d, this one knows %d)", path, e.Schema, journalSchema),
				Hint:   "use that upgrader: it is staged below " + Store,
			}}}
		case e.Seq != h.Seq+1:
			return h, whole, false, damaged(path, h.Seq+1, fmt.Sprintf("has number %d", e.Seq))
		case e.Seq == 1 && (e.Event != EventOpen || e.Schema == 0 || e.Run == nil):
			return h, whole, false, damaged(path, 1, "does not open a run")
		}
		h.add(e)
		whole, rest = data[:len(data)-len(after)], after
	}
	return h, whole, false, nil
}

func damaged(path string, line int, what string) error {
	return &BlockedError{Blocks: []Block{{
		Reason: fmt.Sprintf("the journal %s is damaged: line %d %s", path, line, what),
		Hint: "its backup has the originals of what was replaced: compare " + parent(path) + "/backup with the host; " +
			"then move " + parent(path) + " away and run the upgrader again",
	}}}
}
