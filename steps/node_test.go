package steps

import (
	"errors"
	"strings"
	"testing"
)

func TestDiscoverNode(t *testing.T) {
	apiServer, scheduler := manifestPath(kubeAPIServer), manifestPath(kubeScheduler)
	backup := kubeadmTmpDir + "/kubeadm-backup-manifests-2026-11-20-00-00-00/kube-apiserver.yaml"
	for name, tc := range map[string]struct {
		files []string // beside kubelet.conf and the kubelet's certificate
		given Role
		want  Role
		err   string
		exit  int
	}{
		"worker":                                {want: Worker},
		"control plane":                         {files: []string{apiServer, scheduler, apiServerCert, adminConf}, want: ControlPlane},
		"control plane, as given":               {files: []string{apiServer}, given: ControlPlane, want: ControlPlane},
		"worker, as given":                      {given: Worker, want: Worker},
		"worker with an admin's kubeconfig":     {files: []string{adminConf}, want: Worker},
		"worker that was reset, with backups":   {files: []string{backup}, want: Worker},
		"worker on a host of an external etcd":  {files: []string{etcdMemberDir, manifestPath(etcdName)}, want: Worker},
		"manifest taken away, one live":         {files: []string{scheduler, backup}, want: ControlPlane},
		"manifest taken away, certificate":      {files: []string{apiServerCert, backup}, want: ControlPlane},
		"once a control plane, a worker now":    {files: []string{apiServerCert}, given: Worker, want: Worker},
		"no manifest and no backup":             {files: []string{scheduler, adminConf}, err: "found " + scheduler + ", " + adminConf + "; no " + apiServer, exit: ExitBlocked},
		"no manifest and no backup, worker":     {files: []string{scheduler}, given: Worker, err: "cannot tell", exit: ExitBlocked},
		"certificate alone":                     {files: []string{apiServerCert}, err: "cannot tell", exit: ExitBlocked},
		"not a worker":                          {files: []string{apiServer}, given: Worker, err: "--role worker: this node is a control-plane (found " + apiServer, exit: ExitUsage},
		"not a worker, the manifest taken away": {files: []string{scheduler, backup}, given: Worker, err: "this node is a control-plane", exit: ExitUsage},
		"not a control plane":                   {given: ControlPlane, err: "this node is a worker (no " + apiServer, exit: ExitUsage},
		"no such role":                          {given: "master", err: "the roles are", exit: ExitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			n := newKubeadmNode(t, worker)
			for _, f := range tc.files {
				n.write(f, "content", 0o600)
			}
			got, err := DiscoverNode(t.Context(), n.env.Host, tc.given)
			if tc.err == "" {
				if err != nil || got != (Node{Name: testNode, Role: tc.want}) {
					t.Fatalf("node %+v, error %v", got, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("node %+v, error %v, want %q", got, err, tc.err)
			}
			if exit := ExitCode(err); exit != tc.exit {
				t.Errorf("exit code %d, want %d", exit, tc.exit)
			}
		})
	}
}

func TestDiscoverNodeName(t *testing.T) {
	ca := newTestCA(t)
	embedded := func(cn string) string {
		cert, key := ca.issue(t, cn)
		conf := strings.ReplaceAll(kubeletConfTemplate, `client-certificate: "KEY"`, "client-certificate-data: "+base64Of(cert))
		return strings.ReplaceAll(conf, `client-key: "KEY"`, "client-key-data: "+base64Of(key))
	}
	for name, tc := range map[string]struct {
		conf string // "": none
		want string
		err  string
	}{
		"in a file":         {conf: strings.ReplaceAll(kubeletConfTemplate, "KEY", "/var/lib/kubelet/pki/kubelet-client-current.pem"), want: testNode},
		"in a file beside":  {conf: strings.ReplaceAll(kubeletConfTemplate, "KEY", "../../var/lib/kubelet/pki/kubelet-client-current.pem"), want: testNode},
		"embedded":          {conf: embedded("system:node:node-2"), want: "node-2"},
		"another's":         {conf: embedded("kubernetes-admin"), err: `the certificate is for "kubernetes-admin"`},
		"no file":           {err: "there is no /etc/kubernetes/kubelet.conf"},
		"no certificate":    {conf: strings.ReplaceAll(kubeletConfTemplate, `"KEY"`, `""`), err: "no client certificate"},
		"file is not there": {conf: strings.ReplaceAll(kubeletConfTemplate, "KEY", "/nowhere.pem"), err: "/nowhere.pem is not there"},
		"not a kubeconfig":  {conf: "[", err: "not a node of kubeadm"},
		"no certificate in": {conf: strings.ReplaceAll(kubeletConfTemplate, "KEY", "/etc/kubernetes/kubelet.conf"), err: "no certificate in it"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newKubeadmNode(t, worker)
			n.remove(kubeletConf)
			if tc.conf != "" {
				n.write(kubeletConf, tc.conf, 0o600)
			}
			got, err := DiscoverNode(t.Context(), n.env.Host, "")
			if tc.err == "" {
				if err != nil || got.Name != tc.want {
					t.Fatalf("node %+v, error %v", got, err)
				}
				return
			}
			var blocked *BlockedError
			if !errors.As(err, &blocked) || !strings.Contains(err.Error(), tc.err) || len(Hints(err)) == 0 {
				t.Fatalf("error %v, want %q and a hint", err, tc.err)
			}
		})
	}
}
