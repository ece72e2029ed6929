package manifests

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// UpgraderLabel with the value "true" is on each pod of the upgrader; the
	// drain leaves the pods that have it.
	UpgraderLabel = "node-upgrader.dev/upgrader"
	// RunIDLabel has the run's id, where one was given.
	RunIDLabel = "node-upgrader.dev/run-id"
	// VerifyContainer is the name of the pod's last container, which is no step.
	VerifyContainer = "verify"
	// ForecastContainer is the name of the first init container of a pod that
	// drains: it is no step, and looks whether the drain will be let.
	ForecastContainer = "forecast"

	appName     = "node-upgrader"
	tokenVolume = "kube-api-access"
	// tokenPath is where client libraries look for the service account.
	tokenPath = "/var/run/secrets/kubernetes.io/serviceaccount"
	// tokenSeconds is more than the kubelet, which renews the token, is ever
	// away; client libraries read the file again.
	tokenSeconds = 3600
	// graceSeconds is for the process in the pod only: it stops following the
	// work on the host, which goes on.
	graceSeconds = 30
)

// Pod returns the pod that upgrades one node. The error is that of
// PodOptions.Validate.
func Pod(o PodOptions) (*corev1.Pod, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	template := podTemplate(o)
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: template.ObjectMeta,
		Spec:       template.Spec,
	}
	pod.Name, pod.Namespace = o.Name, o.Namespace
	return pod, nil
}

// podTemplate wants completed options.
func podTemplate(o PodOptions) corev1.PodTemplateSpec {
	spec := corev1.PodSpec{
		NodeName:                      o.Node,
		HostPID:                       true,
		HostNetwork:                   true,
		DNSPolicy:                     corev1.DNSDefault,
		RestartPolicy:                 corev1.RestartPolicyOnFailure,
		PriorityClassName:             "system-node-critical",
		Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		ServiceAccountName:            appName,
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		TerminationGracePeriodSeconds: new(int64(graceSeconds)),
	}
	for _, secret := range o.ImagePullSecrets {
		spec.ImagePullSecrets = append(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	names := o.Steps
	if slices.Contains(names, stepDrain) {
		names = append([]string{ForecastContainer}, names...)
	}
	for _, step := range names {
		c := container(o, step)
		if step == ForecastContainer {
			c.Args[0] = stepDrain
			c.Args = append(c.Args, "--dry-run")
		}
		if o.DrainFirst {
			// For each step: it decides what the drain and the uncordon protect.
			c.Args = append(c.Args, "--drain-first")
		}
		c.Args = append(c.Args, o.Run.args()...)
		// Not only to the step of that name: copy looks at what kubeadm will be
		// given, and the kubelet's judges whether the node is drained.
		if step == stepCopy || step == stepKubeadm {
			c.Args = append(c.Args, o.Kubeadm.args()...)
		}
		if (step == ForecastContainer || step == stepDrain || step == stepKubelet) && o.Drain != nil {
			c.Args = append(c.Args, o.Drain.args()...)
		}
		if needsToken(step) {
			c.VolumeMounts = []corev1.VolumeMount{{Name: tokenVolume, MountPath: tokenPath, ReadOnly: true}}
			if len(spec.Volumes) == 0 {
				spec.Volumes = []corev1.Volume{tokenProjection()}
			}
		}
		spec.InitContainers = append(spec.InitContainers, c)
	}
	verify := container(o, VerifyContainer)
	if len(o.Steps) < len(DefaultSteps()) {
		verify.Args = append(verify.Args, "--steps="+strings.Join(o.Steps, ","))
	}
	spec.Containers = []corev1.Container{verify}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels: podLabels(o),
			// A node that is scaled away in the middle helps nobody.
			Annotations: map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
		},
		Spec: spec,
	}
}

func podLabels(o PodOptions) map[string]string {
	l := appLabels()
	l[UpgraderLabel] = "true"
	if o.RunID != "" {
		l[RunIDLabel] = o.RunID
	}
	return l
}

// appLabels are on every object.
func appLabels() map[string]string {
	return map[string]string{
		"app.kubernetes.io/name":      appName,
		"app.kubernetes.io/component": "upgrader",
		"app.kubernetes.io/part-of":   appName,
	}
}

// needsToken is true for what works through the API server; the other steps
// are done on the host, where a token has no business.
func needsToken(step string) bool {
	return step == ForecastContainer || step == stepDrain || step == stepUncordon
}

func container(o PodOptions, command string) corev1.Container {
	args := []string{command}
	if o.RunID != "" {
		args = append(args, "--run-id", o.RunID)
	}
	args = append(args, "-o", "text")
	if key := o.Run.RequireSignature; key != "" {
		args = append(args, "--require-signature="+key)
	}
	return corev1.Container{
		Name:            command,
		Image:           o.Image,
		ImagePullPolicy: o.ImagePullPolicy,
		Args:            args,
		Env:             askedBy(),
		Resources:       resources(),
		SecurityContext: &corev1.SecurityContext{
			Privileged:             new(true),
			ReadOnlyRootFilesystem: new(true),
			RunAsUser:              new(int64(0)),
		},
		TerminationMessagePath:   corev1.TerminationMessagePathDefault,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

// askedBy tells the program which pod it is of, for the run's receipt.
func askedBy() []corev1.EnvVar {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path},
		}}
	}
	return []corev1.EnvVar{
		field("POD_NAMESPACE", "metadata.namespace"), field("POD_NAME", "metadata.name"),
		{Name: "UPGRADER_ASKED_BY", Value: "pod $(POD_NAMESPACE)/$(POD_NAME)"},
	}
}

// resources are small on purpose: where the node has no room for a
// system-node-critical pod the kubelet evicts others to make it. Such a pod is
// the last that the kernel kills, so that a request below the limit is no risk.
// The limit leaves room for the page cache of the copy, which counts towards
// it. A limit on CPU would only stretch the time in which a service is down.
func resources() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("10m"),
			corev1.ResourceMemory: resource.MustParse("64Mi"),
		},
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
	}
}

// tokenProjection is what the automatic mount would be, as a volume that only
// some containers get.
func tokenProjection() corev1.Volume {
	return corev1.Volume{
		Name: tokenVolume,
		VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			DefaultMode: new(int32(0o400)),
			Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(tokenSeconds))}},
				{ConfigMap: &corev1.ConfigMapProjection{
					LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
					Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
				}},
				{DownwardAPI: &corev1.DownwardAPIProjection{
					Items: []corev1.DownwardAPIVolumeFile{{
						Path:     "namespace",
						FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
					}},
				}},
			},
		}},
	}
}
