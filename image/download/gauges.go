package download

import "sync"

// gauges add up how far several files are, and tell it.
type gauges struct {
	mu          sync.Mutex
	done, total int64
	tell        func(done, total int64)
}

func newGauges(tell func(done, total int64)) *gauges {
	if tell == nil {
		tell = func(_, _ int64) {}
	}
	return &gauges{tell: tell}
}

// gauge is one file's part.
type gauge struct {
	all         *gauges
	done, total int64
}

// set says how much there is of a file; a total below done is not known.
func (g *gauge) set(done, total int64) {
	total = max(done, total)
	g.all.mu.Lock()
	defer g.all.mu.Unlock()
	g.all.done += done - g.done
	g.all.total += total - g.total
	g.done, g.total = done, total
	g.all.tell(g.all.done, g.all.total)
}
