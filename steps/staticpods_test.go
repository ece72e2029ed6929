package steps

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/node-upgrader/node-upgrader/steps/cri"
	"github.com/node-upgrader/node-upgrader/steps/cri/critest"
)

func TestHealthURL(t *testing.T) {
	for name, tc := range map[string]struct{ probes, want, err string }{
		"named port":          {probes: "livenessProbe: {httpGet: {host: 10.0.0.1, path: /livez, port: probe, scheme: HTTPS}}", want: "https://10.0.0.1:2381/livez"},
		"readiness first":     {probes: "livenessProbe: {httpGet: {path: /livez, port: 1}}, readinessProbe: {httpGet: {path: /readyz, port: 2}}", want: "http://127.0.0.1:2/readyz"},
		"startup then":        {probes: "livenessProbe: {httpGet: {path: /livez, port: 1}}, startupProbe: {httpGet: {path: '/health?serializable=true', port: 3}}", want: "http://127.0.0.1:3/health?serializable=true"},
		"IPv6":                {probes: "livenessProbe: {httpGet: {host: '::1', path: /healthz, port: 10257, scheme: HTTPS}}", want: "https://[::1]:10257/healthz"},
		"no such port":        {probes: "livenessProbe: {httpGet: {path: /livez, port: other}}", err: `port "other"`},
		"not over HTTP":       {probes: "livenessProbe: {tcpSocket: {port: 1}}", err: "no HTTP probe"},
		"none":                {probes: "env: []", err: "no HTTP probe"},
		"a path that is none": {probes: "livenessProbe: {httpGet: {path: '%zz', port: 1}}", err: "invalid URL escape"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := parseStaticPod("c", []byte("{kind: Pod, spec: {containers: [{name: sidecar}, {name: c, ports: [{name: probe, containerPort: 2381}], "+tc.probes+"}]}}"))
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.healthURL()
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Errorf("url %q, error %v, want %q", got, err, tc.want)
			}
		})
	}
}

func TestImageVersion(t *testing.T) {
	for ref, want := range map[string]string{
		"registry.k8s.io/kube-apiserver:v1.36.3":                  "1.36.3",
		"registry.example:5000/kube-apiserver:v1.36.3-eks.1":      "1.36.3",
		"registry.k8s.io/etcd:3.6.8-0":                            "3.6.8",
		"registry.k8s.io/kube-apiserver:v1.36.0-rc.1":             "1.36.0-rc.1",
		"registry.k8s.io/kube-apiserver:v1.36.3@sha256:0123":      "1.36.3",
		"registry.k8s.io/kube-apiserver@sha256:0123":              "",
		"registry.example:5000/kube-apiserver":                    "",
		"registry.k8s.io/kube-apiserver:latest":                   "",
		"kube-apiserver:v1.37.0-beta.0_build":                     "1.37.0",
		"registry.k8s.io/kube-scheduler:v1.36.3_custom-2026.11.1": "1.36.3",
	} {
		got := ""
		if v := imageVersion(ref); v != nil {
			got = v.String()
		}
		if got != want {
			t.Errorf("version of %s: %q, want %q", ref, got, want)
		}
	}
}

// The static pods count as up when they have been healthy for a while, at
// their images.
func TestWaitStaticPods(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(n *kubeadmNode, at time.Duration)
		after  time.Duration // when the wait is to end
		err    string
	}{
		"at once": {change: func(*kubeadmNode, time.Duration) {}, after: podsSettle},
		"away for a moment later": {
			change: func(n *kubeadmNode, at time.Duration) {
				delete(n.ill, "6443")
				if at == 2*time.Second {
					n.ill["6443"] = errors.New("connection refused")
				}
			},
			after: 3*time.Second + podsSettle,
		},
		"old container ends late": {
			change: func(n *kubeadmNode, at time.Duration) {
				n.runtime.Change(func(s *critest.State) {
					s.Containers = s.Containers[:4]
					if at < 10*time.Second {
						s.Containers = append(s.Containers, cri.Container{
							Namespace: "kube-system", Pod: "etcd-" + testNode, Name: "etcd", ImageID: "sha256:old",
						})
					}
				})
			},
			after: 10*time.Second + podsSettle,
		},
		"runtime is away": {
			change: func(n *kubeadmNode, at time.Duration) {
				n.runtime.Change(func(s *critest.State) {
					if s.Version = "2.3.7"; at < 4*time.Second {
						s.Version = ""
					}
				})
			},
			after: 4*time.Second + podsSettle,
		},
		"never": {
			change: func(n *kubeadmNode, _ time.Duration) { n.ill["6443"] = errors.New("status 500") },
			after:  podsComeUp, err: "etcd https://127.0.0.1:6443/livez: status 500, not ok",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newKubeadmNode(t)
			start := n.now
			sleep := n.env.Clock.Sleep
			n.env.Clock.Sleep = func(ctx context.Context, d time.Duration) error {
				err := sleep(ctx, d)
				tc.change(n, n.now.Sub(start))
				return err
			}
			tc.change(n, 0)
			pods, err := staticPods(n.fs)
			if err != nil {
				t.Fatal(err)
			}
			err = waitStaticPods(t.Context(), n.env, pods)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("error %v, want %q", err, tc.err)
			}
			if took := n.now.Sub(start); took != tc.after {
				t.Errorf("took %s, want %s", took, tc.after)
			}
		})
	}
}

func TestSummed(t *testing.T) {
	db := bytes.Repeat([]byte("page"), 1024)
	sum := sha256.Sum256(db)
	good := append(bytes.Clone(db), sum[:]...)
	for name, read := range map[string]func(io.Reader) io.Reader{
		"whole": func(r io.Reader) io.Reader { return r },
		"bytes": iotest.OneByteReader,
		"eof":   iotest.DataErrReader,
	} {
		s := &summed{r: read(bytes.NewReader(good)), h: sha256.New()}
		got, err := io.ReadAll(s)
		if err != nil || !bytes.Equal(got, good) || !bytes.Equal(s.tail, sum[:]) || s.n != int64(len(good)) {
			t.Errorf("%s: %d bytes, error %v", name, len(got), err)
		}
	}
	for i := range good { // every flipped bit is found
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if _, err := io.Copy(io.Discard, &summed{r: bytes.NewReader(bad), h: sha256.New()}); err == nil {
			t.Fatalf("byte %d was flipped unseen", i)
		}
	}
	for _, n := range []int{0, 31, 32, len(good) - 1} {
		if _, err := io.Copy(io.Discard, &summed{r: bytes.NewReader(good[:n]), h: sha256.New()}); err == nil {
			t.Errorf("a stream of %d bytes was taken", n)
		}
	}
}

func FuzzParseStaticPod(f *testing.F) {
	f.Add([]byte(manifestOf(etcdName, oldVersion, "https://127.0.0.1:2379")))
	f.Add([]byte("{kind: Pod, spec: {containers: [{image: 'a:b:c@d', livenessProbe: {httpGet: {port: x}}}]}}"))
	f.Add([]byte("kind: Pod"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		p, err := parseStaticPod(etcdName, data)
		if err != nil {
			return
		}
		_, _ = p.healthURL()
		_ = imageVersion(p.image())
		_ = p.flag("listen-client-urls")
	})
}
