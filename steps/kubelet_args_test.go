package steps

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

func TestUnitArgs(t *testing.T) {
	for _, tc := range []struct {
		name  string
		exec  string // words separated by |
		env   []string
		files map[string]string
		want  string
	}{
		{
			name: "kubeadm's drop-in", exec: "/usr/bin/kubelet|$KUBELET_KUBECONFIG_ARGS|$KUBELET_CONFIG_ARGS|$KUBELET_KUBEADM_ARGS|$KUBELET_EXTRA_ARGS",
			env: []string{
				"KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf",
				"KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml",
			},
			files: map[string]string{
				"/var/lib/kubelet/kubeadm-flags.env": "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.1 --pod-infra-container-image=registry.k8s.io/pause:3.10\"\n",
				"/etc/default/kubelet":               "KUBELET_EXTRA_ARGS=\n",
			},
			want: "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf|--kubeconfig=/etc/kubernetes/kubelet.conf|--config=/var/lib/kubelet/config.yaml|--node-ip=10.0.0.1|--pod-infra-container-image=registry.k8s.io/pause:3.10",
		},
		{name: "braces do not split", exec: "kubelet|--x=${A}|${A}|$A", env: []string{"A=one two"}, want: "--x=one two|one two|one|two"},
		{name: "no variable in a longer word", exec: "kubelet|--x=$A|$$A|a$$b", env: []string{"A=one"}, want: "--x=$A|$A|a$b"},
		{name: "unknown variables", exec: "kubelet|$NONE|${NONE}", want: ""},
		{name: "a file wins", exec: "kubelet|$A", env: []string{"A=unit"}, files: map[string]string{"/etc/default/kubelet": "A=file"}, want: "file"},
		{name: "quotes in the value", exec: "kubelet|$A", env: []string{`A=--labels='a b' --x="c d"e f\ g`}, want: "--labels=a b|--x=c de|f g"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			u := hostexec.Unit{Name: kubeletUnit, ExecStart: [][]string{{"/other"}, strings.Split(tc.exec, "|")}, Environment: tc.env}
			for _, file := range []string{"/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet"} {
				u.EnvFiles = append(u.EnvFiles, hostexec.EnvFile{Path: file, Optional: true})
				if content, ok := tc.files[file]; ok {
					if err := os.MkdirAll(filepath.Join(root, filepath.Dir(file)), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(filepath.Join(root, file), []byte(content), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			args, err := unitArgs(hostexec.NewFS(root), u, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, strings.Join(args, "|")); diff != "" {
				t.Error(diff)
			}
		})
	}
	u := hostexec.Unit{Name: kubeletUnit, ExecStart: [][]string{{"kubelet"}}, EnvFiles: []hostexec.EnvFile{{Path: "/none"}}}
	if _, err := unitArgs(hostexec.NewFS(t.TempDir()), u, nil); err == nil {
		t.Error("a required EnvironmentFile that is not there was not missed")
	}
}

func TestParseEnvFile(t *testing.T) {
	for _, tc := range []struct {
		text string
		want map[string]string
	}{
		{"", map[string]string{}},
		{"A=1\nB=2", map[string]string{"A": "1", "B": "2"}},
		{"# A=1\n; B=2\n\n C = 3 \n", map[string]string{"C": "3"}},
		{"A=\"x y\"\nB='x \"y\"'", map[string]string{"A": "x y", "B": `x "y"`}},
		{"A=x\"y\"", map[string]string{"A": `x"y"`}},
		{`A="a\"b\$c\d"`, map[string]string{"A": `a"b$c\d`}},
		{"A=one \\\n  two\nB=3", map[string]string{"A": "one   two", "B": "3"}},
		{"A=a\\ b", map[string]string{"A": "a b"}},
		{"# comment \\\nA=1\nB=2", map[string]string{"A": "1", "B": "2"}},
		{"export A=1\nB", map[string]string{}},
		{"A=1\nA=2", map[string]string{"A": "2"}},
		{"A=", map[string]string{"A": ""}},
		{"A=x  \t\r\nB=y", map[string]string{"A": "x", "B": "y"}},
	} {
		if diff := cmp.Diff(tc.want, parseEnvFile(tc.text)); diff != "" {
			t.Errorf("%q: %s", tc.text, diff)
		}
	}
}

func FuzzParseEnvFile(f *testing.F) {
	f.Add("A=1\nB='2'\n# c\nD=\"\\\"\"\\\n")
	f.Fuzz(func(t *testing.T, text string) {
		for name, value := range parseEnvFile(text) {
			if !variable.MatchString(name) {
				t.Errorf("%q is no variable's name", name)
			}
			// What is written in single quotes comes back as it is.
			if !strings.Contains(value, "'") {
				if got := parseEnvFile(name + "='" + value + "'")[name]; got != value {
					t.Errorf("%q came back as %q", value, got)
				}
			}
			splitWords(value)
		}
	})
}

func TestHealthzURL(t *testing.T) {
	for _, tc := range []struct {
		name, args, config, dropIn, want string
	}{
		{"default", "--config=/c.yaml", "kind: KubeletConfiguration", "", "http://127.0.0.1:10248/healthz"},
		{"no configuration", "", "", "", "http://127.0.0.1:10248/healthz"},
		{"configured", "--config /c.yaml", "healthzPort: 20248\nhealthzBindAddress: 10.0.0.1", "", "http://10.0.0.1:20248/healthz"},
		{"everywhere", "--config=/c.yaml", "healthzBindAddress: 0.0.0.0", "", "http://127.0.0.1:10248/healthz"},
		{"everywhere, v6", "--config=/c.yaml", "healthzBindAddress: '::'", "", "http://[::1]:10248/healthz"},
		{"off", "--config=/c.yaml", "healthzPort: 0", "", ""},
		{"a flag wins", "--config=/c.yaml --healthz-port=1", "healthzPort: 2", "", "http://127.0.0.1:1/healthz"},
		{"a drop-in wins", "--config=/c.yaml --config-dir=/d", "healthzPort: 2", "healthzPort: 3", "http://127.0.0.1:3/healthz"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.WriteFile(filepath.Join(root, "c.yaml"), []byte(tc.config), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(root, "d"), 0o755); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"10.conf", "note.txt"} {
				if err := os.WriteFile(filepath.Join(root, "d", name), []byte(tc.dropIn), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := healthzURL(hostexec.NewFS(root), strings.Fields(tc.args))
			if err != nil || got != tc.want {
				t.Errorf("%q, %v; want %q", got, err, tc.want)
			}
		})
	}
}
