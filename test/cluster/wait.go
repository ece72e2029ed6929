package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/node-upgrader/node-upgrader/test/host"
)

const waitLimit = 4 * time.Minute

// REST is a client configuration with the administrator's rights that reaches
// the API server from this process, through the ground's bridge.
func (c *Cluster) REST() (*rest.Config, error) {
	data, err := c.ControlPlane.ReadFile("/etc/kubernetes/admin.conf")
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil {
		return nil, fmt.Errorf("admin.conf: %w", err)
	}
	if config.Dial = c.Dial; c.Dial == nil {
		config.Dial = c.Ground.DialContext
	}
	config.QPS, config.Burst = 100, 200
	return config, nil
}

// Client is a client made from REST.
func (c *Cluster) Client() (*kubernetes.Clientset, error) {
	config, err := c.REST()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// Wait waits until the API server is ready, every node is Ready and every pod
// that is to run does.
func (c *Cluster) Wait(ctx context.Context) error {
	_, err := c.waitFresh(ctx, time.Time{})
	return err
}

// waitFresh is Wait after a boot: what the API server remembers from before
// since does not count. It returns when the API server was ready.
func (c *Cluster) waitFresh(ctx context.Context, since time.Time) (ready time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	client, err := c.Client()
	if err != nil {
		return ready, err
	}
	why := errors.New("not asked yet")
	err = poll(ctx, func() bool {
		_, why = client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return why == nil
	})
	if err != nil {
		return ready, fmt.Errorf("wait for the API server: %w (last: %w)", err, why)
	}
	ready = time.Now()
	want := len(c.Nodes())
	err = poll(ctx, func() bool {
		why = healthy(ctx, client, want, since)
		return why == nil
	})
	if err != nil {
		return ready, fmt.Errorf("wait for nodes and pods: %w (last: %w)", err, why)
	}
	return ready, nil
}

func poll(ctx context.Context, done func() bool) error {
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	return nil
}

// healthy says what is missing, or nil.
func healthy(ctx context.Context, client kubernetes.Interface, nodes int, since time.Time) error {
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(list.Items) != nodes {
		return fmt.Errorf("%d of %d nodes", len(list.Items), nodes)
	}
	for _, n := range list.Items {
		if err := nodeReady(&n, since); err != nil {
			return err
		}
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		if err := podRuns(&p, since); err != nil {
			return err
		}
	}
	return everyPodThere(ctx, client)
}

func nodeReady(n *corev1.Node, since time.Time) error {
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		if c.Status != corev1.ConditionTrue {
			return fmt.Errorf("node %s is not Ready: %s", n.Name, c.Message)
		}
		if c.LastHeartbeatTime.Time.Before(since.Truncate(time.Second)) {
			return fmt.Errorf("node %s was last heard of before the boot", n.Name)
		}
		return nil
	}
	return fmt.Errorf("node %s has no Ready condition", n.Name)
}

func podRuns(p *corev1.Pod, since time.Time) error {
	if p.Status.Phase == corev1.PodSucceeded {
		return nil
	}
	if p.Status.Phase == corev1.PodFailed && len(p.OwnerReferences) > 0 {
		return nil // as an evicted pod: its owner's number of ready pods decides
	}
	name := p.Namespace + "/" + p.Name
	if p.Status.Phase != corev1.PodRunning || len(p.Status.ContainerStatuses) < len(p.Spec.Containers) {
		return fmt.Errorf("pod %s is %s", name, p.Status.Phase)
	}
	for _, c := range p.Status.ContainerStatuses {
		if !c.Ready || c.State.Running == nil {
			return fmt.Errorf("pod %s: container %s is not ready", name, c.Name)
		}
		if c.State.Running.StartedAt.Time.Before(since.Truncate(time.Second)) {
			return fmt.Errorf("pod %s: container %s has not started since the boot", name, c.Name)
		}
	}
	return nil
}

// everyPodThere catches what no pod shows: pods that are yet to be made.
func everyPodThere(ctx context.Context, client kubernetes.Interface) error {
	deployments, err := client.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, d := range deployments.Items {
		if d.Status.ObservedGeneration < d.Generation || d.Status.ReadyReplicas < *d.Spec.Replicas {
			return fmt.Errorf("deployment %s/%s has %d of %d pods ready", d.Namespace, d.Name, d.Status.ReadyReplicas, *d.Spec.Replicas)
		}
	}
	sets, err := client.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, d := range sets.Items {
		if d.Status.DesiredNumberScheduled == 0 || d.Status.NumberReady < d.Status.DesiredNumberScheduled {
			return fmt.Errorf("daemon set %s/%s has %d of %d pods ready", d.Namespace, d.Name, d.Status.NumberReady, d.Status.DesiredNumberScheduled)
		}
	}
	return nil
}

// waitContainerd waits until containerd answers.
func waitContainerd(ctx context.Context, m host.Machine) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var why error
	err := poll(ctx, func() bool {
		var res host.Result
		res, why = m.Exec(ctx, host.Command("ctr", "version"))
		return why == nil && strings.Contains(res.Stdout, "Server:")
	})
	if err != nil {
		return fmt.Errorf("wait for containerd on %s: %w (last: %w)", m.Name(), err, why)
	}
	return nil
}
