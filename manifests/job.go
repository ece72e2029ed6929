package manifests

import (
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// jobRetries are about twenty minutes with the kubelet's growing delays.
const jobRetries = 8

// Job returns a Job of the pod that Pod returns, which replaces a pod that was
// deleted. The error is that of PodOptions.Validate.
//
// The Job has no deadline: each step has its own, and a deadline from outside
// would delete the pod of an upgrade that goes on.
func Job(o PodOptions) (*batchv1.Job, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	template := podTemplate(o)
	return &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace, Labels: podLabels(o)},
		Spec: batchv1.JobSpec{
			BackoffLimit: new(int32(jobRetries)),
			// Not while the old one is still ending: one upgrader a node.
			PodReplacementPolicy: new(batchv1.Failed),
			Template:             template,
		},
	}, nil
}
