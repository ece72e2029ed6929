package manifests

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func mustPod(t *testing.T, o PodOptions) *corev1.Pod {
	t.Helper()
	pod, err := Pod(o)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func names(containers []corev1.Container) []string {
	var names []string
	for _, c := range containers {
		names = append(names, c.Name)
	}
	return names
}

func TestOrder(t *testing.T) {
	for _, tt := range []struct {
		name       string
		steps      []string
		drainFirst bool
		want       string
	}{
		{"default", nil, false, "forecast copy containerd cni-plugins kubeadm drain kubelet uncordon"},
		{"drain first", nil, true, "forecast copy drain containerd cni-plugins kubeadm kubelet uncordon"},
		{"own order is kept", []string{"kubelet", "copy", "kubeadm"}, false, "kubelet copy kubeadm"},
		{"own order, drain first", []string{"copy", "containerd", "kubelet", "drain"}, true, "forecast copy drain containerd kubelet"},
		{"drained before containerd already", []string{"drain", "copy", "containerd"}, true, "forecast drain copy containerd"},
		{"drain first without containerd", []string{"copy", "drain", "kubelet"}, true, "forecast copy drain kubelet"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			given := slices.Clone(tt.steps)
			pod := mustPod(t, PodOptions{Node: "n", Image: testImage, Steps: tt.steps, DrainFirst: tt.drainFirst})
			if diff := cmp.Diff(strings.Fields(tt.want), names(pod.Spec.InitContainers)); diff != "" {
				t.Errorf("init containers (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{VerifyContainer}, names(pod.Spec.Containers)); diff != "" {
				t.Errorf("containers (-want +got):\n%s", diff)
			}
			if !slices.Equal(given, tt.steps) {
				t.Errorf("the caller's steps were changed to %v", tt.steps)
			}
			for _, c := range pod.Spec.InitContainers {
				if dry := slices.Contains(c.Args, "--dry-run"); c.Name == ForecastContainer && (c.Args[0] != "drain" || !dry) ||
					c.Name != ForecastContainer && (c.Args[0] != c.Name || dry) {
					t.Errorf("container %s runs %s", c.Name, c.Args[0])
				}
				if got := slices.Contains(c.Args, "--drain-first"); got != tt.drainFirst {
					t.Errorf("%s has --drain-first: %v", c.Name, got)
				}
			}
		})
	}
}

// TestToken is the reason for a volume of our own: whoever takes over a step
// that only changes the host must not get the rights to drain the cluster.
func TestToken(t *testing.T) {
	for name, o := range map[string]PodOptions{
		"all":           {Node: "n", Image: testImage},
		"full":          full(),
		"only uncordon": {Node: "n", Image: testImage, Steps: []string{"uncordon"}},
		"none":          {Node: "n", Image: testImage, Steps: []string{"copy", "kubelet"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := mustPod(t, o)
			if pod.Spec.AutomountServiceAccountToken == nil || *pod.Spec.AutomountServiceAccountToken {
				t.Error("the token is mounted automatically")
			}
			tokens := map[string]bool{}
			for _, v := range pod.Spec.Volumes {
				if v.Projected == nil {
					t.Fatalf("volume %s is not projected", v.Name)
				}
				for _, s := range v.Projected.Sources {
					if s.ServiceAccountToken != nil {
						tokens[v.Name] = true
						if s.ServiceAccountToken.ExpirationSeconds == nil {
							t.Error("the token has no expiry of its own")
						}
					}
				}
			}
			mounted := false
			for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
				has := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return tokens[m.Name] })
				if want := c.Name == "forecast" || c.Name == "drain" || c.Name == "uncordon"; has != want {
					t.Errorf("container %s has a token: %v", c.Name, has)
				}
				mounted = mounted || has
			}
			if !mounted && len(pod.Spec.Volumes) > 0 {
				t.Error("a volume that nobody mounts")
			}
		})
	}
}

func TestStepFlags(t *testing.T) {
	pod := mustPod(t, full())
	takers := map[string][]string{"kubeadm": {"copy", "kubeadm"}, "drain": {"forecast", "drain", "kubelet"}}
	only := map[string]string{
		"--patches=/etc/kubernetes/patches":        "kubeadm",
		"--certificate-renewal=false":              "kubeadm",
		"--etcd-upgrade=true":                      "kubeadm",
		"--ignore-preflight-errors=CreateJob,Swap": "kubeadm",
		"--delete-emptydir-data=true":              "drain",
		"--ignore-daemonsets=false":                "drain",
		"--force":                                  "drain",
		"--disable-eviction":                       "drain",
		"--grace-period=30":                        "drain",
		"--timeout=5m0s":                           "drain",
		"--pod-selector=app!=database":             "drain",
		"--skip-wait-for-delete-timeout=60":        "drain",
	}
	for flag, step := range only {
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if got := slices.Contains(c.Args, flag); got != slices.Contains(takers[step], c.Name) {
				t.Errorf("container %s has %s: %v", c.Name, flag, got)
			}
		}
	}
}

func TestEveryContainer(t *testing.T) {
	pod := mustPod(t, full())
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Image != testImage || c.ImagePullPolicy != corev1.PullNever {
			t.Errorf("%s: image %s, %s", c.Name, c.Image, c.ImagePullPolicy)
		}
		if i := slices.Index(c.Args, "--run-id"); i < 0 || c.Args[i+1] != "v1.36.3-2" {
			t.Errorf("%s: args %q have no run id", c.Name, c.Args)
		}
		if len(c.Command) > 0 {
			t.Errorf("%s: overrides the image's entrypoint", c.Name)
		}
		if c.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
			t.Errorf("%s: termination message policy %s", c.Name, c.TerminationMessagePolicy)
		}
		if c.Resources.Requests.Memory().IsZero() || !c.Resources.Limits.Cpu().IsZero() {
			t.Errorf("%s: resources %v", c.Name, c.Resources)
		}
	}
	if pod.Labels[UpgraderLabel] != "true" || pod.Labels[RunIDLabel] != "v1.36.3-2" {
		t.Errorf("labels %v", pod.Labels)
	}
}

func TestJobIsThePod(t *testing.T) {
	pod := mustPod(t, full())
	job, err := Job(full())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(pod.Spec, job.Spec.Template.Spec); diff != "" {
		t.Errorf("the Job's pod differs (-pod +job):\n%s", diff)
	}
	if diff := cmp.Diff(pod.Labels, job.Spec.Template.Labels); diff != "" {
		t.Errorf("labels differ (-pod +job):\n%s", diff)
	}
	if job.Name != pod.Name || job.Namespace != pod.Namespace {
		t.Errorf("Job %s/%s, pod %s/%s", job.Namespace, job.Name, pod.Namespace, pod.Name)
	}
}

func TestDefaultName(t *testing.T) {
	nameOf := func(node string) string { return mustPod(t, PodOptions{Node: node, Image: testImage}).Name }
	longest := strings.Repeat("n", maxName-len("upgrader-"))
	for node, want := range map[string]string{
		"node-1": "upgrader-node-1",
		longest:  "upgrader-" + longest,
		// Cut right behind a dot.
		strings.Repeat("n", 44) + "." + strings.Repeat("m", 200): "upgrader-" + strings.Repeat("n", 44) + "-a4ab54a5",
	} {
		if got := nameOf(node); got != want {
			t.Errorf("node %s: name %s, want %s", node, got, want)
		}
	}
	for node := longest + "n"; len(node) <= 253; node += "n" {
		n := nameOf(node)
		if err := checkName(n); err != nil {
			t.Error(err)
		}
		if other := nameOf(node[:len(node)-1] + "m"); other == n {
			t.Errorf("two nodes, one name: %s", n)
		}
	}
}
