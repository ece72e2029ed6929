package steps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// devicesWait bounds the wait for device plugins: one that does not come back
// must not keep the whole node out of service.
const devicesWait = time.Minute

// uncordonStep takes back the upgrader's own cordon once the node is Ready and
// its device plugins are back. It is never somebody else's cordon that goes.
func uncordonStep(protects ...Step) Step {
	u := uncordoner{protects}
	return Step{
		Name: stepUncordon, Short: "take the node's cordon back, if it is the upgrader's",
		Timeout: 2 * time.Minute, Kube: true, Check: u.check, Run: u.run,
	}
}

type uncordoner struct{ protects []Step }

func (u uncordoner) check(ctx context.Context, env Env) (State, error) {
	looking, cancel := context.WithTimeoutCause(ctx, lookPatience, fmt.Errorf("no answer from the API server for %s", lookPatience))
	defer cancel()
	node, err := ownNode(looking, env)
	if err != nil {
		return State{}, err
	}
	want := "schedulable"
	if node.Spec.Unschedulable && !ours(node) {
		want = schedulable(node)
	}
	state := State{Phase: Needed, Facts: []Fact{{"node", schedulable(node), want}}}
	if _, annotated := node.Annotations[cordonedBy]; annotated {
		state.Changes = []Change{{"uncordon", node.Name}}
		if !ours(node) {
			state.Changes = []Change{{"remove", "annotation " + cordonedBy}}
		}
		if _, err := env.Admin(ctx); err != nil && !errors.Is(err, ErrAdminElsewhere) {
			state.Phase, state.Blocks = Blocked, []Block{noAdmin(err)}
		}
		return state, nil
	}
	// Not cordoned by us: the drain, if there is to be one, still lies ahead.
	names, err := disturbed(ctx, env, u.protects)
	if err != nil {
		return State{}, err
	}
	var before drained
	if _, err := env.Record.Load(drainRecord, &before); err != nil {
		return State{}, err
	}
	if len(names) == 0 || before.Released || node.Spec.Unschedulable {
		state.Phase = Done
		return state, nil
	}
	state.Facts[0].Have, state.Changes = "to be drained", []Change{{"uncordon", node.Name}}
	return state, nil
}

// ownNode reads the node with the node's own rights, or an administrator's.
func ownNode(ctx context.Context, env Env) (*corev1.Node, error) {
	client, err := env.Kube(ctx)
	if err != nil {
		var admin error
		if client, admin = env.Admin(ctx); admin != nil {
			return nil, errors.Join(err, admin)
		}
	}
	return findNode(ctx, env, client)
}

func (u uncordoner) run(ctx context.Context, env Env) error {
	client, err := env.Admin(ctx)
	if err != nil {
		return &BlockedError{Blocks: []Block{noAdmin(err)}}
	}
	node, err := findNode(ctx, env, client)
	if err != nil {
		return err
	}
	var before drained
	if _, err := env.Record.Load(drainRecord, &before); err != nil {
		return err
	}
	if ours(node) {
		if err := u.settled(ctx, env, client, before.Extended); err != nil {
			return err
		}
	}
	if err := release(ctx, env, client); err != nil {
		return err
	}
	if before.Foreign {
		env.Log.Info("the node stays cordoned: it was so before", "node", env.Node.Name)
	}
	before.Node, before.Released = env.Node.Name, true
	return env.Record.Save(ctx, drainRecord, before)
}

// settled waits until the node is Ready, and for a while until its device
// plugins have registered again: a pod that asks for their resources would be
// rejected until then.
func (u uncordoner) settled(ctx context.Context, env Env, client kubernetes.Interface, want map[string]int64) error {
	var waited time.Time
	err := poll(ctx, env, time.Second, func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, env.Node.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c := readyCondition(node); c.Status != corev1.ConditionTrue {
			return fmt.Errorf("its condition Ready is %q: %s", c.Status, c.Message)
		}
		missing := missingDevices(want, extended(node))
		if len(missing) == 0 {
			return nil
		}
		if waited.IsZero() {
			waited = env.Clock.Now()
			env.Log.Info("waiting for device plugins", "missing", strings.Join(missing, ", "))
		}
		if env.Clock.Now().Sub(waited) < devicesWait {
			return errors.New("device plugins are not back: " + strings.Join(missing, ", "))
		}
		env.Log.Warn("uncordoning without all device plugins", "missing", strings.Join(missing, ", "), "waited", devicesWait.String())
		return nil
	})
	if err != nil {
		return &HintError{
			Err:  fmt.Errorf("wait until node %s may take pods again: %w", env.Node.Name, err),
			Hint: "kubectl describe node " + env.Node.Name + "; then run upgrader uncordon again, or kubectl uncordon " + env.Node.Name,
		}
	}
	return nil
}

func missingDevices(want, have map[string]int64) []string {
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if have[name] < want[name] {
			missing = append(missing, fmt.Sprintf("%s is %d, was %d", name, have[name], want[name]))
		}
	}
	return missing
}

// extended are the node's allocatable resources that device plugins or an
// administrator have added to Kubernetes' own.
func extended(node *corev1.Node) map[string]int64 {
	found := map[string]int64{}
	for name, q := range node.Status.Allocatable {
		domain, _, qualified := strings.Cut(string(name), "/")
		native := !qualified || domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io")
		if !native {
			found[string(name)] = q.Value()
		}
	}
	return found
}

// readyCondition is the node's condition Ready; its zero value without one.
func readyCondition(node *corev1.Node) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{}
}
