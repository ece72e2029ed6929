package steps

import (
	"context"
	"time"
)

// Step is one part of the upgrade of a node.
type Step struct {
	Name, Short string
	// Timeout is for Run and for the wait until Check says Done.
	Timeout time.Duration
	// Check only reads, and may be called at any time, also before earlier
	// steps have run. An error means that the state cannot be told.
	Check func(context.Context, Env) (State, error)
	// Run makes Check say Done. It is idempotent.
	Run func(context.Context, Env) error
	// Undo puts back what Run has changed, from what the run has kept. It is
	// idempotent, and it does not need the bundle: Env.Bundle may be nil. Nil
	// where a step changes nothing that is to be put back.
	Undo func(context.Context, Env) error
	// UndoBlocks are the reasons for which Undo could not be done now; it only
	// reads. Nil: there are none.
	UndoBlocks func(context.Context, Env) ([]Block, error)
	// Kube steps change the cluster through its API only. In a pod they stay
	// in the container, with its service account; the other steps enter the
	// host and run there as a unit of systemd.
	Kube bool
}

// Phase is what Check found.
type Phase string

// The phases of a step.
const (
	Done    Phase = "done"    // nothing to do
	Needed  Phase = "needed"  // Run would change something
	Blocked Phase = "blocked" // Run would be refused
)

// State is what Check found, as `upgrader plan` shows it.
type State struct {
	Phase Phase `json:"phase"`
	// Facts are what was compared.
	Facts []Fact `json:"facts,omitempty"`
	// Changes are what Run would touch, in order.
	Changes []Change `json:"changes,omitempty"`
	// Blocks are all the reasons that there are, with Phase Blocked.
	Blocks []Block `json:"blocks,omitempty"`
}

// Fact is one thing found on the node beside what it should be. Want is empty
// where there is no target.
type Fact struct {
	Name string `json:"name"`
	Have string `json:"have"`
	Want string `json:"want,omitempty"`
}

// Change is one thing that Run would do: Verb is "replace", "add", "restart",
// "run", "evict", "cordon", …; Object a path, a unit, a command line or a pod.
type Change struct {
	Verb   string `json:"verb"`
	Object string `json:"object"`
}

// Block is a reason not to start, and what to do about it.
type Block struct {
	Reason string `json:"reason"`
	Hint   string `json:"hint,omitempty"`
}
