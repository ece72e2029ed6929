package manifests

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// RBACOptions say where the upgrader's pods run and what they may do.
type RBACOptions struct {
	Namespace string // --namespace; "": DefaultNamespace
	// DisableEviction also allows to delete pods, which goes past every
	// PodDisruptionBudget. Only `drain --disable-eviction` needs it.
	DisableEviction bool // --disable-eviction
}

// RBAC returns, in the order in which they are to be applied, the namespace
// with leave to run privileged pods, the service account, and its rights in the
// cluster. The namespaces that Kubernetes owns (default, kube-…) are taken as
// they are.
//
// The names in the cluster's scope are fixed: one installation a cluster.
func RBAC(o RBACOptions) ([]runtime.Object, error) {
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	if err := checkNamespace(o.Namespace); err != nil {
		return nil, err
	}
	var objects []runtime.Object
	if o.Namespace != metav1.NamespaceDefault && !strings.HasPrefix(o.Namespace, "kube-") {
		labels := appLabels()
		labels["pod-security.kubernetes.io/enforce"] = "privileged"
		objects = append(objects, &corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: o.Namespace, Labels: labels},
		})
	}
	return append(objects,
		&corev1.ServiceAccount{
			TypeMeta:                     metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
			ObjectMeta:                   metav1.ObjectMeta{Name: appName, Namespace: o.Namespace, Labels: appLabels()},
			AutomountServiceAccountToken: new(false),
		},
		&rbacv1.ClusterRole{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
			ObjectMeta: metav1.ObjectMeta{Name: appName, Labels: appLabels()},
			Rules:      rules(o.DisableEviction),
		},
		&rbacv1.ClusterRoleBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
			ObjectMeta: metav1.ObjectMeta{Name: appName, Labels: appLabels()},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: appName},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: appName, Namespace: o.Namespace}},
		},
	), nil
}

// rules are what kubectl's drain library asks of the API, and what the drain's
// forecast does: budgets, and whether another node could take the pods.
// Discovery and /readyz are open to everybody who is authenticated.
func rules(deletePods bool) []rbacv1.PolicyRule {
	pods := []string{"get", "list"}
	if deletePods {
		pods = append(pods, "delete")
	}
	return []rbacv1.PolicyRule{
		// Cordon and uncordon, with the mark that tells who cordoned; list is for the forecast.
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "patch"}},
		// The node's pods, and each until it is gone.
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: pods},
		{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}},
		// Whether the DaemonSet of a pod still is.
		{APIGroups: []string{"apps"}, Resources: []string{"daemonsets"}, Verbs: []string{"get"}},
		// The budgets that would block, by name.
		{APIGroups: []string{"policy"}, Resources: []string{"poddisruptionbudgets"}, Verbs: []string{"list"}},
	}
}
