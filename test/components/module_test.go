package components

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGoMod(t *testing.T) {
	tests := map[string]struct {
		program        program
		upstream, want string
	}{
		"staging modules become releases": {
			program: program{module: "k8s.io/kubernetes", version: "v1.36.3", staging: "v0.36.3"},
			upstream: `module k8s.io/kubernetes

go 1.26.0

godebug default=go1.26

tool golang.org/x/tools/cmd/stringer

require (
	github.com/blang/semver/v4 v4.0.0
	k8s.io/api v0.0.0
)

require golang.org/x/sys v0.1.0 // indirect

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	golang.org/x/sys => golang.org/x/sys v0.2.0
)
`,
			want: `module node-upgrader.test/components

go 1.26.0

godebug default=go1.26

require (
	github.com/blang/semver/v4 v4.0.0
	k8s.io/api v0.0.0
)

require (
	golang.org/x/sys v0.1.0 // indirect
	k8s.io/kubernetes v1.36.3
)

replace golang.org/x/sys => golang.org/x/sys v0.2.0

replace k8s.io/api => k8s.io/api v0.36.3
`,
		},
		"released siblings are used as required": {
			program: program{module: "go.etcd.io/etcd/server/v3", version: "v3.6.8"},
			upstream: `module go.etcd.io/etcd/server/v3

go 1.24.0

toolchain go1.24.13

require go.etcd.io/etcd/api/v3 v3.6.8

replace go.etcd.io/etcd/api/v3 => ../api

replace go.etcd.io/etcd => ./FORBIDDEN_DEPENDENCY
`,
			want: `module node-upgrader.test/components

go 1.24.0

require (
	go.etcd.io/etcd/api/v3 v3.6.8
	go.etcd.io/etcd/server/v3 v3.6.8
)
`,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := test.program.goMod([]byte(test.upstream))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, string(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestGoName(t *testing.T) {
	for pkg, want := range map[string]string{
		"k8s.io/kubernetes/cmd/kubelet":   "kubelet",
		"go.etcd.io/etcd/server/v3":       "server",
		"github.com/containerd/v2/cmd/vx": "vx",
	} {
		if got := goName(pkg); got != want {
			t.Errorf("goName(%s) = %s, want %s", pkg, got, want)
		}
	}
}
