package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// clientPEM is a client certificate for name with its key, as the kubelet keeps
// its own.
func clientPEM(t *testing.T, name string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name, Organization: []string{"system:nodes"}},
		NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})...)
}

// apiServer tells who asked, in its answer.
func apiServer(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := r.Header.Get("Authorization")
		if len(r.TLS.PeerCertificates) > 0 {
			who = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		if r.URL.Path != "/readyz" || who != "system:node:n1" && who != "Bearer secret" {
			http.Error(w, "who is "+who, http.StatusForbidden)
		}
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes fail on purpose
	s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func TestFromFile(t *testing.T) {
	server := apiServer(t)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for _, tc := range []struct {
		name, cluster, user, want string
	}{
		{
			"absolute links of the host", "certificate-authority: /etc/kubernetes/pki/ca.crt",
			"client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem\n    client-key: /var/lib/kubelet/pki/kubelet-client-current.pem", "",
		},
		{
			"relative paths", "certificate-authority: pki/ca.crt",
			"client-certificate: ../../var/lib/kubelet/pki/kubelet-client-current.pem\n    client-key: ../../var/lib/kubelet/pki/kubelet-client-current.pem", "",
		},
		{"token file", "certificate-authority: pki/ca.crt", "tokenFile: token", ""},
		{"wrong authority", "certificate-authority: pki/other.crt", "tokenFile: token", "unknown authority"},
		{"nobody", "certificate-authority: pki/ca.crt", "token: other", "who is Bearer other"},
		{"no such certificate", "certificate-authority: pki/ca.crt", "client-certificate: /gone", "/gone: no such file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			write := func(name string, data []byte) {
				if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(root, name), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("/etc/kubernetes/pki/ca.crt", ca)
			write("/etc/kubernetes/pki/other.crt", clientPEM(t, "other"))
			write("/etc/kubernetes/token", []byte("secret"))
			write("/var/lib/kubelet/pki/2030.pem", clientPEM(t, "system:node:n1"))
			if err := os.Symlink("/var/lib/kubelet/pki/2030.pem", filepath.Join(root, "/var/lib/kubelet/pki/kubelet-client-current.pem")); err != nil {
				t.Fatal(err)
			}
			write("/etc/kubernetes/kubelet.conf", fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: c
contexts:
- name: c
  context: {cluster: k, user: u}
clusters:
- name: k
  cluster:
    server: %s
    %s
users:
- name: u
  user:
    %s
`, server.URL, tc.cluster, tc.user))
			client, err := FromFile(hostexec.NewFS(root), "/etc/kubernetes/kubelet.conf")
			if err == nil {
				err = Ready(t.Context(), client)
			}
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), root) {
				t.Errorf("not the host's path: %v", err)
			}
		})
	}
}
