package skeleton

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"syscall"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// api is the cluster's API server: the world's Node and pods, and what the
// upgrader reads beside them.
type api struct{ n *Node }

// connect gives a client; as the real one it asks nothing yet.
func (a api) connect() kubernetes.Interface {
	client := fake.NewSimpleClientset()                            //nolint:staticcheck // every request is answered here; the other one reads all schemas
	discovery := client.Discovery().(*fakediscovery.FakeDiscovery) //nolint:forcetypeassert // of a fake
	client.PrependReactor("*", "*", func(action ktesting.Action) (bool, kruntime.Object, error) {
		if action.Matches("get", "version") {
			return true, nil, a.n.world.look(func(s *state) error {
				v, err := a.version(s)
				discovery.FakedServerVersion = &version.Info{GitVersion: v}
				return err
			})
		}
		obj, err := a.answer(action)
		return true, obj, err
	})
	return client
}

// version is the API server's own, an error when it is away.
func (a api) version(s *state) (string, error) {
	if s.API != "" {
		return s.API, nil
	}
	for _, c := range s.Containers {
		for _, v := range []string{OldKubernetes, NewKubernetes} {
			if c.Name == "kube-apiserver" && c.ImageID == imageID(imageOf("kube-apiserver", v)) {
				return v, nil
			}
		}
	}
	return "", &url.Error{Op: "Get", URL: "https://127.0.0.1:6443/", Err: syscall.ECONNREFUSED}
}

func (a api) answer(action ktesting.Action) (obj kruntime.Object, err error) {
	what := action.GetVerb() + " " + action.GetResource().Resource
	if sub := action.GetSubresource(); sub != "" {
		what += "/" + sub
	}
	switch action := action.(type) {
	case ktesting.PatchAction:
		if what == "patch nodes" {
			return a.patchNode(action)
		}
	case ktesting.CreateAction:
		if eviction, ok := action.GetObject().(*policyv1.Eviction); ok && what == "create pods/eviction" {
			return nil, a.evict(eviction)
		}
	}
	err = a.n.world.look(func(s *state) error {
		if _, err := a.version(s); err != nil {
			return err
		}
		obj, err = read(s, what, action)
		return err
	})
	return obj, err
}

// read answers what an upgrade asks.
func read(s *state, what string, action ktesting.Action) (kruntime.Object, error) {
	name := ""
	if get, ok := action.(ktesting.GetAction); ok {
		name = get.GetName()
	}
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: action.GetResource().Resource}, name)
	switch what {
	case "get nodes":
		if name != NodeName {
			return nil, gone
		}
		return s.Node.DeepCopy(), nil
	case "list nodes":
		return &corev1.NodeList{Items: []corev1.Node{s.Node}}, nil
	case "get leases":
		renewed := metav1.NewMicroTime(s.Lease)
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: NodeName}, Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}, nil
	case "get configmaps":
		if name == "kubeadm-config" {
			return &corev1.ConfigMap{Data: map[string]string{"ClusterConfiguration": "kubernetesVersion: " + s.Cluster + "\n"}}, nil
		}
		return nil, gone
	case "get pods":
		for _, p := range s.Pods {
			if p.Name == name && p.Namespace == action.GetNamespace() {
				return p.DeepCopy(), nil
			}
		}
		return nil, gone
	case "list pods":
		list, ok := action.(ktesting.ListAction)
		if !ok {
			return nil, errors.New("skeleton: a list that is none")
		}
		r, out := list.GetListRestrictions(), &corev1.PodList{}
		for _, p := range s.Pods {
			if r.Labels.Matches(labels.Set(p.Labels)) && r.Fields.Matches(fields.Set{"spec.nodeName": p.Spec.NodeName}) {
				out.Items = append(out.Items, p)
			}
		}
		return out, nil
	case "list poddisruptionbudgets":
		return &policyv1.PodDisruptionBudgetList{}, nil
	}
	return nil, fmt.Errorf("skeleton: unexpected request: %s %s", what, name)
}

func (a api) patchNode(action ktesting.PatchAction) (kruntime.Object, error) {
	var patch struct {
		Metadata struct {
			ResourceVersion string             `json:"resourceVersion"`
			Annotations     map[string]*string `json:"annotations"`
		} `json:"metadata"`
		Spec *struct {
			Unschedulable *bool `json:"unschedulable"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(action.GetPatch(), &patch); err != nil {
		return nil, err
	}
	var now *corev1.Node
	err := a.change(OpPatch, "node "+NodeName+" "+string(action.GetPatch()), func(s *state) error {
		node := &s.Node
		if patch.Metadata.ResourceVersion != node.ResourceVersion {
			return apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, NodeName, errors.New("changed"))
		}
		for k, v := range patch.Metadata.Annotations {
			if v == nil {
				delete(node.Annotations, k)
			} else {
				metav1.SetMetaDataAnnotation(&node.ObjectMeta, k, *v)
			}
		}
		if patch.Spec != nil {
			node.Spec.Unschedulable = patch.Spec.Unschedulable != nil && *patch.Spec.Unschedulable
			node.ManagedFields = nil
			if o, ok := action.(interface{ GetPatchOptions() metav1.PatchOptions }); ok && node.Spec.Unschedulable {
				node.ManagedFields = []metav1.ManagedFieldsEntry{{
					Manager: o.GetPatchOptions().FieldManager, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`),
				}}
			}
		}
		version, err := strconv.Atoi(node.ResourceVersion)
		node.ResourceVersion = strconv.Itoa(version + 1)
		now = node.DeepCopy()
		return err
	})
	return now, err
}

func (a api) evict(e *policyv1.Eviction) error {
	is := func(p corev1.Pod) bool { return p.Namespace == e.Namespace && p.Name == e.Name }
	if e.DeleteOptions != nil && len(e.DeleteOptions.DryRun) > 0 {
		return a.n.world.look(func(s *state) error { _, err := a.version(s); return err })
	}
	return a.change(OpEvict, e.Namespace+"/"+e.Name, func(s *state) error {
		if !s.Node.Spec.Unschedulable {
			return fmt.Errorf("skeleton: %s is evicted from a node that is not cordoned", e.Name)
		}
		s.Pods = slices.DeleteFunc(s.Pods, is)
		return nil
	})
}

// change is a write to the API server.
func (a api) change(op, object string, f func(*state) error) error {
	return a.n.effect(hostexec.Effect{Op: op, Object: object}, nil, func() error {
		return a.n.world.change(func(s *state) error {
			if _, err := a.version(s); err != nil {
				return err
			}
			return f(s)
		})
	})
}
