package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
)

const nodeName = "node"

// kubeletState is where the stand-in for the kubelet writes its version.
const kubeletState = "/var/lib/kubelet/cpu_manager_state"

// apiServer answers what the steps ask, on a port of this machine: a cluster at
// this version whose only node reports the kubelet that was started last and is
// always Ready. That it lives is asked of the kubelet itself.
func apiServer(kubernetesVersion string) (client kubernetes.Interface, stop func(), err error) {
	answers := map[string]func() any{
		"/version": func() any { return version.Info{GitVersion: kubernetesVersion} },
		"/api/v1/nodes/" + nodeName: func() any {
			return node()
		},
		"/api/v1/pods": func() any { return corev1.PodList{} },
		"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + nodeName: func() any {
			now := metav1.NewMicroTime(time.Now())
			return coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &now}}
		},
		"/api/v1/namespaces/kube-system/configmaps/kubeadm-config": func() any {
			return corev1.ConfigMap{Data: map[string]string{"ClusterConfiguration": "kubernetesVersion: " + kubernetesVersion + "\n"}}
		},
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
	if err != nil {
		return nil, nil, err
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			_, _ = w.Write([]byte("ok"))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		var body any = metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: r.URL.Path + " is not here",
		}
		if answer := answers[r.URL.Path]; answer != nil && r.Method == http.MethodGet {
			body = answer()
		} else {
			w.WriteHeader(http.StatusNotFound)
		}
		_ = json.NewEncoder(w).Encode(body)
	})}
	go func() { _ = server.Serve(listener) }()
	client, err = clientOf("http://" + listener.Addr().String())
	return client, func() { _ = server.Close() }, err
}

func node() corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	if data, err := os.ReadFile(kubeletState); err == nil {
		n.Status.NodeInfo.KubeletVersion = strings.TrimSpace(string(data))
	}
	n.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(),
	}}
	return n
}
