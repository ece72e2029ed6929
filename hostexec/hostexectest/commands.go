package hostexectest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// Commands runs nothing: it answers the commands that were announced.
type Commands struct {
	mu      sync.Mutex
	answers []*answer
	// Ran are the commands that were run, as lines.
	Ran []string
}

type answer struct {
	prefix string
	do     func(hostexec.Command) (string, error)
}

// On announces a command by the beginning of its argv, words joined by one
// space; the program is matched by its base name too. The longest announced
// beginning wins. do returns what goes to standard output; its error becomes a
// *hostexec.CommandError with code 1.
func (f *Commands) On(prefix string, do func(hostexec.Command) (string, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers = append(f.answers, &answer{prefix: prefix, do: do})
}

// Say announces a command that succeeds and prints out.
func (f *Commands) Say(prefix, out string) {
	f.On(prefix, func(hostexec.Command) (string, error) { return out, nil })
}

// Run implements hostexec.Commands.
func (f *Commands) Run(ctx context.Context, c hostexec.Command) (hostexec.Output, error) {
	if err := ctx.Err(); err != nil {
		return hostexec.Output{}, &hostexec.CommandError{Argv: c.Argv, Code: -1, Err: err}
	}
	line := strings.Join(c.Argv, " ")
	base := line
	if i := strings.LastIndex(c.Argv[0], "/"); i >= 0 {
		base = line[i+1:]
	}
	f.mu.Lock()
	f.Ran = append(f.Ran, line)
	var best *answer
	for _, a := range f.answers {
		if (startsWith(line, a.prefix) || startsWith(base, a.prefix)) && (best == nil || len(a.prefix) >= len(best.prefix)) {
			best = a
		}
	}
	f.mu.Unlock()
	if best == nil {
		return hostexec.Output{}, fmt.Errorf("hostexectest: unexpected command: %s", line)
	}
	out, err := best.do(c)
	if c.Line != nil {
		for l := range strings.Lines(out) {
			c.Line(strings.TrimRight(l, "\n"))
		}
	}
	if err != nil {
		var ce *hostexec.CommandError
		if !errors.As(err, &ce) {
			err = &hostexec.CommandError{Argv: c.Argv, Code: 1, Stderr: err.Error(), Err: errors.New("exit status 1")}
		}
	}
	return hostexec.Output{Stdout: []byte(out)}, err
}

func startsWith(line, prefix string) bool {
	return line == prefix || strings.HasPrefix(line, prefix+" ") || strings.HasPrefix(line, prefix) && strings.HasSuffix(prefix, "/")
}
