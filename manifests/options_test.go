package manifests

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
)

func TestValidate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*PodOptions)
		flag   string // "": valid
	}{
		{"minimal", func(*PodOptions) {}, ""},
		{"no node", func(o *PodOptions) { o.Node = "" }, "--node"},
		{"node in capitals", func(o *PodOptions) { o.Node = "Node" }, "--node"},
		{"longest node", func(o *PodOptions) { o.Node = strings.Repeat("a", 253) }, ""},
		{"node too long", func(o *PodOptions) { o.Node = strings.Repeat("a", 254) }, "--node"},
		{"no image", func(o *PodOptions) { o.Image = "" }, "--image"},
		{"no tag", func(o *PodOptions) { o.Image = "registry.example:5000/upgrader" }, "--image"},
		{"latest", func(o *PodOptions) { o.Image = "registry.example/upgrader:latest" }, "--image"},
		{"no reference", func(o *PodOptions) { o.Image = "registry.example/Up grader:v1" }, "--image"},
		{"short digest", func(o *PodOptions) { o.Image = "upgrader@sha256:abc" }, "--image"},
		{"tag", func(o *PodOptions) { o.Image = "registry.example/upgrader:v1.36.3" }, ""},
		{"latest by digest", func(o *PodOptions) { o.Image = strings.Replace(testImage, "@", ":latest@", 1) }, ""},
		{"namespace", func(o *PodOptions) { o.Namespace = "a.b" }, "--namespace"},
		{"name", func(o *PodOptions) { o.Name = "under_score" }, "--name"},
		{"longest name", func(o *PodOptions) { o.Name = strings.Repeat("a", 63) }, ""},
		{"name too long", func(o *PodOptions) { o.Name = strings.Repeat("a", 64) }, "--name"},
		{"run id", func(o *PodOptions) { o.RunID = "../etc" }, "--run-id"},
		{"unknown step", func(o *PodOptions) { o.Steps = []string{"copy", "reboot"} }, "--steps"},
		{"verify is no step", func(o *PodOptions) { o.Steps = []string{"verify"} }, "--steps"},
		{"step twice", func(o *PodOptions) { o.Steps = []string{"copy", "copy"} }, "--steps"},
		{"drain first without drain", func(o *PodOptions) { o.Steps, o.DrainFirst = []string{"containerd"}, true }, "--drain-first"},
		{"drain flags without drain", func(o *PodOptions) { o.Steps, o.Drain = []string{"copy"}, &DrainOptions{} }, "--steps"},
		{"kubeadm flags without kubeadm", func(o *PodOptions) { o.Steps, o.Kubeadm.Patches = []string{"copy"}, "/p" }, "--steps"},
		{"pull policy", func(o *PodOptions) { o.ImagePullPolicy = "always" }, "--image-pull-policy"},
		{"pull secret", func(o *PodOptions) { o.ImagePullSecrets = []string{"ok", "not ok"} }, "--image-pull-secrets"},
		{"config", func(o *PodOptions) { o.Kubeadm.Config = "/etc/kubernetes/upgrade.yaml" }, ""},
		{"relative config", func(o *PodOptions) { o.Kubeadm.Config = "upgrade.yaml" }, "--config"},
		{"relative patches", func(o *PodOptions) { o.Kubeadm.Patches = "patches" }, "--patches"},
		{"config and patches", func(o *PodOptions) { o.Kubeadm.Config, o.Kubeadm.Patches = "/c", "/p" }, "--config"},
		{"config and etcd", func(o *PodOptions) { o.Kubeadm.Config, o.Kubeadm.EtcdUpgrade = "/c", new(false) }, "--config"},
		{"config and checks", func(o *PodOptions) { o.Kubeadm.Config, o.Kubeadm.IgnorePreflightErrors = "/c", []string{"Swap"} }, ""},
		{"grace period", func(o *PodOptions) { o.Drain = &DrainOptions{GracePeriod: 1500 * time.Millisecond} }, "--grace-period"},
		{"timeout", func(o *PodOptions) { o.Drain = &DrainOptions{Timeout: -1} }, "--timeout"},
		{"selector", func(o *PodOptions) { o.Drain = &DrainOptions{PodSelector: "a in"} }, "--pod-selector"},
		{"skip wait", func(o *PodOptions) { o.Drain = &DrainOptions{SkipWaitForDelete: -time.Second} }, "--skip-wait-for-delete-timeout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := PodOptions{Node: "node-1", Image: testImage}
			tt.change(&o)
			err := o.Validate()
			var bad *OptionError
			switch {
			case tt.flag == "" && err != nil:
				t.Fatal(err)
			case tt.flag == "":
				return
			case !errors.As(err, &bad):
				t.Fatalf("error %v, want one for %s", err, tt.flag)
			case bad.Flag != tt.flag || strings.Count(err.Error(), "\n") > 0:
				t.Errorf("error %v, want one for %s alone", err, tt.flag)
			}
			if _, err := Pod(o); err == nil {
				t.Error("Pod accepts what Validate refuses")
			}
			if _, err := Job(o); err == nil {
				t.Error("Job accepts what Validate refuses")
			}
		})
	}
}

func TestValidateNamesAll(t *testing.T) {
	err := PodOptions{Namespace: "A", Steps: []string{"x"}}.Validate()
	for _, flag := range []string{"--node", "--image", "--namespace", "--steps"} {
		if err == nil || !strings.Contains(err.Error(), flag+": ") {
			t.Errorf("%s is not in: %v", flag, err)
		}
	}
}

func TestRBAC(t *testing.T) {
	if _, err := RBAC(RBACOptions{Namespace: "A"}); err == nil {
		t.Error("a namespace that cannot be was accepted")
	}
	for _, disableEviction := range []bool{false, true} {
		objects, err := RBAC(RBACOptions{DisableEviction: disableEviction})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			role, ok := o.(*rbacv1.ClusterRole)
			if !ok {
				continue
			}
			for _, r := range role.Rules {
				for _, wild := range slices.Concat(r.APIGroups, r.Resources, r.Verbs) {
					if wild == "*" {
						t.Errorf("a wildcard in %v", r)
					}
				}
				if deletes := slices.Contains(r.Verbs, "delete"); deletes != (disableEviction && slices.Contains(r.Resources, "pods")) {
					t.Errorf("DisableEviction %v: %v may delete: %v", disableEviction, r.Resources, deletes)
				}
				if slices.Contains(r.Resources, "secrets") {
					t.Error("secrets")
				}
			}
		}
	}
}
