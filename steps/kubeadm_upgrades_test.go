package steps

import (
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

func imageOf(component, v string) string {
	if component == etcdName {
		return "registry.k8s.io/etcd:" + etcdImage(v)
	}
	return "registry.k8s.io/" + component + ":" + v
}

func manifestOf(component, v, etcd string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: kube-system}
spec:
  hostNetwork: true
  containers:
  - name: %[1]s
    image: %[2]s
    command:
    - %[1]s
    - --name=node-1
    - --initial-advertise-peer-urls=https://192.0.2.1:2380
    - --etcd-servers=%[3]s
    - --listen-client-urls=https://192.0.2.1:2379,%[3]s
    - --data-dir=/var/lib/etcd
    - --trusted-ca-file=/etc/kubernetes/pki/etcd/ca.crt
    livenessProbe:
      httpGet: {host: 127.0.0.1, path: /livez, port: probe-port, scheme: HTTPS}
    ports:
    - {containerPort: 6443, name: probe-port, protocol: TCP}
`, component, imageOf(component, v), etcd)
}

// upgrades announces the kubeadm command and does what the real one does.
func (n *kubeadmNode) upgrades(command string) {
	n.commands.On(command, func(hostexec.Command) (string, error) {
		if n.read("/usr/bin/kubeadm") != "new kubeadm" {
			return "", errors.New("the old kubeadm was run")
		}
		n.write(kubeletConfig, kubeletConfigAt(newVersion), 0o644)
		if n.env.Node.Role == Worker {
			return "[upgrade] worker upgraded\n", nil
		}
		dir := kubeadmTmpDir + "/kubeadm-backup-manifests-2026-11-21-11-00-00/"
		for _, c := range controlPlane() {
			old := n.read(manifestPath(c))
			if old == "" {
				continue
			}
			n.write(dir+c+".yaml", old, 0o600)
			n.write(manifestPath(c), strings.ReplaceAll(old, imageOf(c, oldVersion), imageOf(c, newVersion)), 0o600)
			n.runAs(c, newVersion)
		}
		n.write(kubeadmTmpDir+"/kubeadm-backup-etcd-2026-11-21-11-00-00/etcd/member/snap/db", "copy", 0o600)
		n.configure(newVersion)
		return "[upgrade/staticpods] Moving\nW1121 a warning\n[upgrade] SUCCESS!\n", nil
	})
}

func (n *kubeadmNode) configure(v string) {
	n.t.Helper()
	if _, err := n.api.CoreV1().ConfigMaps("kube-system").Update(n.t.Context(), clusterConfiguration(v), metav1.UpdateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}
