package steps

import (
	"fmt"
	"strings"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// demand is what something new takes of a file system.
type demand struct {
	dir   string // one that lies on it
	what  string
	bytes uint64
	hint  string // what may be removed there
}

// roomForAll blocks where a file system has too little left for all that is
// demanded of it, or would have less than what the kubelet wants free.
func roomForAll(env Env, demands ...demand) ([]Block, error) {
	var on []hostexec.Space
	of := map[[2]int32][]demand{}
	for _, d := range demands {
		if d.bytes == 0 {
			continue
		}
		space, err := env.Host.FS.Free(d.dir)
		if err != nil {
			return nil, err
		}
		if of[space.ID] == nil {
			on = append(on, space)
		}
		of[space.ID] = append(of[space.ID], d)
	}
	var blocks []Block
	for _, space := range on {
		blocks = append(blocks, tooMuch(space, evictionReserve(env, space), of[space.ID])...)
	}
	return blocks, nil
}

// tooMuch is a Block where together they take more than there is, but for what has
// to stay free.
func tooMuch(space hostexec.Space, reserve uint64, demands []demand) []Block {
	var need uint64
	var whats, hints []string
	for _, d := range demands {
		need += d.bytes
		whats, hints = append(whats, fmt.Sprintf("%s (up to %d MiB)", d.what, d.bytes>>20)), append(hints, d.hint)
	}
	if space.Bytes >= need+reserve {
		return nil
	}
	dir := demands[0].dir
	reason := fmt.Sprintf("disk: %s has %d MiB free, %s needs %d MiB", dir, space.Bytes>>20, strings.Join(whats, " and "), need>>20)
	if space.Bytes >= need {
		reason += fmt.Sprintf(", which leaves less than the %d MiB under which the kubelet evicts pods", reserve>>20)
	}
	return []Block{{
		Reason: reason,
		Hint:   fmt.Sprintf("free %d MiB on the file system of %s (%s)", (need+reserve-space.Bytes)>>20+1, dir, strings.Join(hints, "; ")),
	}}
}
