package steps

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// Where kubeadm keeps what makes a machine a node.
const (
	kubernetesDir    = "/etc/kubernetes"
	manifestsDir     = kubernetesDir + "/manifests"
	kubeadmTmpDir    = kubernetesDir + "/tmp"
	kubeletConf      = kubernetesDir + "/kubelet.conf"
	adminConf        = kubernetesDir + "/admin.conf"
	apiServerCert    = kubernetesDir + "/pki/apiserver.crt"
	kubeletConfig    = "/var/lib/kubelet/config.yaml"
	kubeletFlagsFile = "/var/lib/kubelet/kubeadm-flags.env"
	etcdMemberDir    = "/var/lib/etcd/member"
)

// DiscoverNode finds out the node's name and role from what kubeadm left on
// its disk; no API server is asked. A given role that contradicts what is
// found is a *UsageError, a machine that kubeadm did not make a node of a
// *BlockedError.
//
// kubeadm takes a node without /etc/kubernetes/manifests/kube-apiserver.yaml
// for a worker. A kubeadm that was killed between its two renames has taken
// that file away, so that its other traces are looked at too.
func DiscoverNode(ctx context.Context, host hostexec.Host, role Role) (Node, error) {
	if err := ctx.Err(); err != nil {
		return Node{}, err
	}
	switch role {
	case "", ControlPlane, Worker:
	default:
		return Node{}, &UsageError{fmt.Sprintf("--role %s: the roles are %s and %s", role, ControlPlane, Worker)}
	}
	name, err := nodeName(host.FS)
	if err != nil {
		return Node{}, err
	}
	traces, err := findTraces(host.FS)
	if err != nil {
		return Node{}, fmt.Errorf("find out the node's role: %w", err)
	}
	found, err := traces.role(role)
	if err != nil {
		return Node{}, err
	}
	if role != "" && role != found {
		return Node{}, &UsageError{fmt.Sprintf("--role %s: this node is a %s (%s)", role, found, traces)}
	}
	return Node{Name: name, Role: found}, nil
}

// nodeName is the name that the kubelet's client certificate was made out for.
func nodeName(fs hostexec.FS) (string, error) {
	data, err := fs.ReadFile(kubeletConf)
	if errors.Is(err, os.ErrNotExist) {
		return "", notKubeadm("there is no "+kubeletConf, "run the upgrader on a node that `kubeadm init` or `kubeadm join` made")
	}
	if err != nil {
		return "", err
	}
	config, err := clientcmd.Load(data)
	if err != nil {
		return "", notKubeadm(kubeletConf+": "+err.Error(), "`kubeadm kubeconfig user --help` tells how to make it anew")
	}
	var user string
	if c := config.Contexts[config.CurrentContext]; c != nil {
		user = c.AuthInfo
	}
	auth := config.AuthInfos[user]
	if auth == nil || len(auth.ClientCertificateData) == 0 && auth.ClientCertificate == "" {
		return "", notKubeadm(kubeletConf+" has no client certificate", "read "+kubeletConf+": kubeadm gives each kubelet a certificate of its own")
	}
	cert, from := auth.ClientCertificateData, kubeletConf
	if len(cert) == 0 {
		if from = auth.ClientCertificate; !path.IsAbs(from) {
			from = path.Join(path.Dir(kubeletConf), from)
		}
		if cert, err = fs.ReadFile(from); errors.Is(err, os.ErrNotExist) {
			return "", notKubeadm("the kubelet's client certificate "+from+" is not there", "is the kubelet running? `journalctl -u kubelet`")
		} else if err != nil {
			return "", err
		}
	}
	name, err := certifiedNode(cert)
	if err != nil {
		return "", notKubeadm(from+": "+err.Error(), "openssl x509 -noout -subject -in "+from)
	}
	return name, nil
}

// certifiedNode is NAME of the subject CN=system:node:NAME of the first
// certificate in data.
func certifiedNode(data []byte) (string, error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return "", err
		}
		name, ok := strings.CutPrefix(cert.Subject.CommonName, "system:node:")
		if !ok || name == "" {
			return "", fmt.Errorf("the certificate is for %q, not for a node", cert.Subject.CommonName)
		}
		return name, nil
	}
	return "", errors.New("no certificate in it")
}

func notKubeadm(reason, hint string) error {
	return &BlockedError{Blocks: []Block{{Reason: "not a node of kubeadm: " + reason, Hint: hint}}}
}

// traces are what tells a control plane from a worker.
type traces struct {
	apiServer bool     // its manifest
	manifests []string // of the other components of a control plane
	pki       []string // what only a control plane needs
	hints     []string // what a control plane has, and others may
	backup    string   // newest kubeadm backup of the API server's manifest
}

func findTraces(fs hostexec.FS) (traces, error) {
	var t traces
	var err error
	if t.apiServer, err = fs.Exists(manifestPath(kubeAPIServer)); err != nil {
		return t, err
	}
	if t.manifests, err = existing(fs, manifestPath(kubeControllerManager), manifestPath(kubeScheduler)); err != nil {
		return t, err
	}
	if t.pki, err = existing(fs, apiServerCert); err != nil {
		return t, err
	}
	if t.hints, err = existing(fs, adminConf, etcdMemberDir); err != nil {
		return t, err
	}
	t.backup, err = newestBackup(fs, "kubeadm-backup-manifests-", kubeAPIServer+".yaml")
	return t, err
}

func existing(fs hostexec.FS, paths ...string) ([]string, error) {
	var found []string
	for _, p := range paths {
		there, err := fs.Exists(p)
		if err != nil {
			return nil, err
		}
		if there {
			found = append(found, p)
		}
	}
	return found, nil
}

// role decides. given only settles what cannot be told.
func (t traces) role(given Role) (Role, error) {
	live, was := len(t.manifests) > 0, len(t.pki) > 0
	switch {
	case t.apiServer:
		return ControlPlane, nil
	case !live && !was:
		// A backup alone proves nothing: `kubeadm reset` leaves it behind.
		return Worker, nil
	case t.backup != "":
		return ControlPlane, nil
	case given == Worker && !live:
		return Worker, nil
	}
	hint := "put the API server's manifest back, or run `kubeadm init phase control-plane apiserver`"
	if !live {
		hint += "; if this was a control plane once and is none any more, give --role " + string(Worker)
	}
	return "", &BlockedError{Blocks: []Block{{
		Reason: "cannot tell a control plane from a worker: " + t.String() + ", and there is no backup of the manifest in " + kubeadmTmpDir,
		Hint:   hint,
	}}}
}

// String names what was found.
func (t traces) String() string {
	var found []string
	if t.apiServer {
		found = append(found, manifestPath(kubeAPIServer))
	}
	found = append(append(append(found, t.manifests...), t.pki...), t.hints...)
	if t.backup != "" {
		found = append(found, t.backup)
	}
	s := ""
	if len(found) > 0 {
		s = "found " + strings.Join(found, ", ")
	}
	if !t.apiServer {
		if s != "" {
			s += "; "
		}
		s += "no " + manifestPath(kubeAPIServer)
	}
	return s
}
