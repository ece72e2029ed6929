package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/pelletier/go-toml/v2"

	"github.com/node-upgrader/node-upgrader/test/components"
)

func testBuild(systemd bool) *build {
	return &build{
		set:         components.Set{Name: "1.35", Kubernetes: "1.35.4", Pause: "3.10.1"},
		workloadRef: "example.test/workload:v1", systemd: systemd,
	}
}

func TestEveryFileRendersToItsFormat(t *testing.T) {
	for _, systemd := range []bool{false, true} {
		for _, name := range []string{controlPlaneName, workerName} {
			facts := testBuild(systemd).factsOf(name)
			facts.Token, facts.CAHash = "abcdef.0123456789abcdef", "sha256:00"
			entries, err := files.ReadDir("files")
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				text, err := render(e.Name(), facts)
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(string(text), "<no value>") || strings.Contains(string(text), "{{") {
					t.Errorf("%s: %s", e.Name(), text)
				}
				if err := parses(e.Name(), text); err != nil {
					t.Errorf("%s: %v\n%s", e.Name(), err, text)
				}
			}
		}
	}
}

func parses(name string, text []byte) error {
	var v any
	switch {
	case strings.HasSuffix(name, ".toml"):
		return toml.Unmarshal(text, &v)
	case strings.HasSuffix(name, ".conflist"):
		return json.Unmarshal(text, &v)
	case strings.HasSuffix(name, ".yaml"):
		for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
			if err := d.Decode(&v); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
		}
	case strings.Contains(string(text), "[Service]"):
		return nil
	}
	return errors.New("a file of no known format")
}

func TestNodesDifferInWhatTheyMust(t *testing.T) {
	b := testBuild(true)
	cp, worker := b.factsOf(controlPlaneName), b.factsOf(workerName)
	if cp.IP != worker.OtherIP || cp.OtherIP != worker.IP || cp.PodSubnet != worker.OtherPodSubnet || cp.PodSubnet == worker.PodSubnet {
		t.Errorf("%+v\n%+v", cp, worker)
	}
	if cp.Driver != "systemd" || testBuild(false).factsOf(workerName).Driver != "cgroupfs" {
		t.Error("wrong cgroup driver")
	}
}

func TestParseJoin(t *testing.T) {
	token, hash, err := parseJoin("kubeadm join 10.89.0.11:6443 --token a.b --discovery-token-ca-cert-hash sha256:12 \n")
	if token != "a.b" || hash != "sha256:12" || err != nil {
		t.Errorf("%q, %q, %v", token, hash, err)
	}
	if _, _, err := parseJoin("error"); err == nil {
		t.Error("no error")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, bad := range []Options{
		{Set: "1.35", Workers: 2}, {Set: "1.35", Workers: -1}, {Set: "1.35", Workers: 1, Bare: true}, {Set: "none"}, {},
	} {
		if _, err := prepare(t.Context(), bad); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

func TestSnapshotsExpireBeforeTheirCertificates(t *testing.T) {
	dir := t.TempDir()
	if Expired(dir) || Expired(dir+"/none") {
		t.Error("a new or missing snapshot is expired")
	}
	old := time.Now().Add(-301 * 24 * time.Hour)
	if err := os.Chtimes(dir, old, old); err != nil {
		t.Fatal(err)
	}
	if !Expired(dir) {
		t.Error("an old snapshot is not expired")
	}
}

func TestHealthy(t *testing.T) {
	since := time.Now().Truncate(time.Second)
	now, before := metav1.NewTime(since), metav1.NewTime(since.Add(-time.Hour))
	one := int32(1)
	good := func() (*corev1.Node, *corev1.Pod, *appsv1.Deployment, *appsv1.DaemonSet) {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "cp"},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: now},
			}},
		}
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
				{Name: "c", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}},
			}},
		}
		deployment := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{Replicas: &one},
			Status: appsv1.DeploymentStatus{ReadyReplicas: 1},
		}
		set := &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Name: "s"},
			Status:     appsv1.DaemonSetStatus{DesiredNumberScheduled: 1, NumberReady: 1},
		}
		return node, pod, deployment, set
	}
	for name, c := range map[string]struct {
		change func(*corev1.Node, *corev1.Pod, *appsv1.Deployment, *appsv1.DaemonSet)
		want   string // part of the error
	}{
		"all well": {func(*corev1.Node, *corev1.Pod, *appsv1.Deployment, *appsv1.DaemonSet) {}, ""},
		"completed pod": {func(_ *corev1.Node, p *corev1.Pod, _ *appsv1.Deployment, _ *appsv1.DaemonSet) {
			p.Status = corev1.PodStatus{Phase: corev1.PodSucceeded}
		}, ""},
		"evicted pod that was replaced": {func(_ *corev1.Node, p *corev1.Pod, _ *appsv1.Deployment, _ *appsv1.DaemonSet) {
			p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "r"}}
		}, ""},
		"failed pod": {func(_ *corev1.Node, p *corev1.Pod, _ *appsv1.Deployment, _ *appsv1.DaemonSet) {
			p.Status = corev1.PodStatus{Phase: corev1.PodFailed}
		}, "pod default/p is Failed"},
		"node not ready": {func(n *corev1.Node, _ *corev1.Pod, _ *appsv1.Deployment, _ *appsv1.DaemonSet) {
			n.Status.Conditions[0].Status = corev1.ConditionUnknown
		}, "node cp is not Ready"},
		"stale heartbeat": {func(n *corev1.Node, _ *corev1.Pod, _ *appsv1.Deployment, _ *appsv1.DaemonSet) {
			n.Status.Conditions[0].LastHeartbeatTime = before
		}, "before the boot"},
		"stale container": {func(_ *corev1.Node, p *corev1.Pod, _ *appsv1.Deployment, _ *appsv1.DaemonSet) {
			p.Status.ContainerStatuses[0].State.Running.StartedAt = before
		}, "has not started since"},
		"pending pod": {func(_ *corev1.Node, p *corev1.Pod, _ *appsv1.Deployment, _ *appsv1.DaemonSet) {
			p.Status = corev1.PodStatus{Phase: corev1.PodPending}
		}, "pod default/p is Pending"},
		"unready container": {func(_ *corev1.Node, p *corev1.Pod, _ *appsv1.Deployment, _ *appsv1.DaemonSet) {
			p.Status.ContainerStatuses[0].Ready = false
		}, "container c is not ready"},
		"pod not made yet": {func(_ *corev1.Node, _ *corev1.Pod, d *appsv1.Deployment, _ *appsv1.DaemonSet) {
			d.Status.ReadyReplicas = 0
		}, "deployment /d has 0 of 1"},
		"daemon not made yet": {func(_ *corev1.Node, _ *corev1.Pod, _ *appsv1.Deployment, s *appsv1.DaemonSet) {
			s.Status.DesiredNumberScheduled = 0
		}, "daemon set /s"},
	} {
		t.Run(name, func(t *testing.T) {
			node, pod, deployment, set := good()
			c.change(node, pod, deployment, set)
			client := fake.NewClientset([]runtime.Object{node, pod, deployment, set}...)
			err := healthy(t.Context(), client, 1, since)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
