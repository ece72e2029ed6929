//go:build race

package tables

// every is how many points there are to one that is tried: with the race
// detector, which makes each take five times as long, it is a sample. `make test`
// tries all of them without it.
const every = 60
