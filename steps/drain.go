package steps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// lookPatience is how long a Check waits for an API server that is away; a Run
// has the step's own time.
const lookPatience = 15 * time.Second

// cleanupTime is what a drain that failed has for uncordoning the node.
const cleanupTime = 30 * time.Second

// forever stands for kubectl's --timeout=0.
const forever = 24 * time.Hour

// ErrAdminElsewhere is Env.Admin's answer in a process that has no rights in
// the cluster while another container of its pod has: what the drain would
// meet is then left to that container.
var ErrAdminElsewhere = errors.New("the credentials are the drain container's")

// drainStep cordons the node and evicts its pods, as `kubectl drain` does,
// while one of the steps that it protects is about to disturb them. timeout is
// DrainOptions.Timeout.
func drainStep(timeout time.Duration, protects ...Step) Step {
	d := drainer{protects}
	if timeout <= 0 {
		timeout = forever
	}
	return Step{
		Name: stepDrain, Short: "cordon the node and evict its pods",
		Timeout: timeout + 2*time.Minute, // to get at the API server, and to uncordon after a failure
		Kube:    true, Check: d.check, Run: d.run,
	}
}

type drainer struct{ protects []Step }

// drained is what a drain leaves in the run's record for the uncordon.
type drained struct {
	Node string `json:"node"`
	// Foreign: somebody else had cordoned the node before.
	Foreign bool `json:"foreign"`
	// Extended are the allocatable device plugins' resources before the drain.
	Extended map[string]int64 `json:"extended,omitempty"`
	Done     bool             `json:"done"`
	// Released: the node was uncordoned since.
	Released bool `json:"released"`
}

const drainRecord = "drain"

// disturbed names the protected steps that are about to disturb the node's
// pods: those that are not Done and restart something. One that only waits for
// the node's health, or that adds a file, is no reason to drain. A Blocked step
// is one: all that is in the way is named at once, and what blocks it may be
// gone when its turn comes.
func disturbed(ctx context.Context, env Env, protects []Step) ([]string, error) {
	var names []string
	var unknown error
	for _, s := range protects {
		state, err := s.Check(ctx, env)
		restarts := slices.ContainsFunc(state.Changes, func(c Change) bool { return c.Verb == "restart" })
		switch {
		case err != nil:
			unknown = errors.Join(unknown, fmt.Errorf("does %s need it: %w", s.Name, err))
		case state.Phase != Done && restarts:
			names = append(names, s.Name)
		}
	}
	if len(names) > 0 {
		return names, nil
	}
	return nil, unknown
}

func (d drainer) check(ctx context.Context, env Env) (State, error) {
	names, err := disturbed(ctx, env, d.protects)
	if err != nil {
		return State{}, err
	}
	if len(names) == 0 {
		return State{Phase: Done}, nil
	}
	client, err := env.Admin(ctx)
	if errors.Is(err, ErrAdminElsewhere) {
		return State{
			Phase:   Needed,
			Facts:   []Fact{{Name: "forecast", Have: err.Error()}},
			Changes: []Change{{"cordon", env.Node.Name}},
		}, nil
	}
	if err != nil {
		return State{Phase: Blocked, Blocks: []Block{noAdmin(err)}}, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lookPatience, fmt.Errorf("no answer from the API server for %s", lookPatience))
	defer cancel()
	return d.look(ctx, env, client)
}

// look is check once it is known that the drain has a purpose.
func (d drainer) look(ctx context.Context, env Env, client kubernetes.Interface) (State, error) {
	node, err := findNode(ctx, env, client)
	if err != nil {
		return State{}, err
	}
	list, err := listPods(ctx, env, client, nil)
	if err != nil {
		return State{}, err
	}
	var before drained
	if _, err := env.Record.Load(drainRecord, &before); err != nil {
		return State{}, err
	}
	state := State{Phase: Needed, Facts: []Fact{
		{"node", schedulable(node), "cordoned"},
		{"pods to evict", strconv.Itoa(len(list.pods)), "0"},
	}}
	if node.Spec.Unschedulable {
		state.Facts[0].Have = state.Facts[0].Want
		if len(list.pods)+len(list.refused) == 0 && before.Done && !before.Released {
			return State{Phase: Done, Facts: state.Facts}, nil
		}
	} else {
		state.Changes = append(state.Changes, Change{"cordon", env.Node.Name})
	}
	for _, p := range list.pods {
		state.Changes = append(state.Changes, Change{"evict", podName(&p)})
	}
	if state.Blocks, err = forecastDrain(ctx, env, client, list); err != nil {
		return State{}, fmt.Errorf("forecast the drain: %w", err)
	}
	if len(state.Blocks) > 0 {
		state.Phase = Blocked
	}
	return state, nil
}

func schedulable(node *corev1.Node) string {
	switch {
	case ours(node):
		return "cordoned by the upgrader"
	case node.Spec.Unschedulable:
		return "cordoned by somebody else"
	default:
		return "schedulable"
	}
}

func noAdmin(err error) Block {
	b := Block{Reason: "no credentials to cordon and to evict: " + err.Error(), Hint: "give an administrator's kubeconfig with --kubeconfig"}
	var h *HintError
	if errors.As(err, &h) {
		b.Hint = h.Hint
	}
	return b
}

func (d drainer) run(ctx context.Context, env Env) error {
	// Whether there is a purpose is asked again, with all the step's patience:
	// nothing is evicted because a question could not be answered.
	var names []string
	if err := poll(ctx, env, time.Second, func(ctx context.Context) (err error) {
		names, err = disturbed(ctx, env, d.protects)
		return err
	}); err != nil || len(names) == 0 {
		return err
	}
	client, err := env.Admin(ctx)
	if err != nil {
		return &BlockedError{Blocks: []Block{noAdmin(err)}}
	}
	record, err := remember(ctx, env, client)
	if err != nil {
		return err
	}
	evicted, err := d.drain(ctx, env, client)
	if err == nil {
		record.Done = true
		return env.Record.Save(ctx, drainRecord, record)
	}
	// The caller's time may be what ran out, or the caller was told to stop.
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	if undo := release(back, env, client); undo != nil {
		return errors.Join(err, undo)
	}
	env.Log.Info("uncordoned again", "node", env.Node.Name, "evicted", evicted)
	return err
}

// remember keeps what the uncordon has to know of the node before the drain. A
// drain that is resumed keeps what the first one saw: the device plugins may
// be away by now.
func remember(ctx context.Context, env Env, client kubernetes.Interface) (drained, error) {
	node, err := findNode(ctx, env, client)
	if err != nil {
		return drained{}, err
	}
	var before drained
	known, err := env.Record.Load(drainRecord, &before)
	if err != nil {
		return drained{}, err
	}
	now := drained{Node: node.Name, Foreign: node.Spec.Unschedulable && !ours(node), Extended: extended(node)}
	if known && before.Node == node.Name && !before.Released {
		now.Extended = before.Extended
	}
	if now.Foreign {
		env.Log.Warn("somebody else has cordoned the node: it stays cordoned", "node", node.Name)
	}
	return now, env.Record.Save(ctx, drainRecord, now)
}

// drain cordons and evicts within the drain's own deadline. It returns how many
// evictions were accepted.
func (d drainer) drain(ctx context.Context, env Env, client kubernetes.Interface) (int, error) {
	deadline := env.Options.Drain.Timeout
	if deadline <= 0 {
		deadline = forever
	}
	limited, cancel := context.WithTimeoutCause(ctx, deadline, &drainDeadline{deadline})
	defer cancel()
	if _, err := cordon(limited, env, client); err != nil {
		return 0, err
	}
	e := &evictions{env: env, client: client}
	err := e.all(limited)
	return len(e.accepted), err
}

// drainDeadline is the end of the drain's own time, as against its caller's.
type drainDeadline struct{ after time.Duration }

func (e *drainDeadline) Error() string { return fmt.Sprintf("no end after %s", e.after) }
