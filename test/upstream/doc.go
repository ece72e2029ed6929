// Package upstream lets Kubernetes' own judge of container runtimes, critest of
// sigs.k8s.io/cri-tools, decide whether the containerd of an upgraded node is a
// good one.
//
//	make e2e-upstream
//
// # What is done
//
// A throwaway control plane is upgraded by the upgrader itself (`upgrader run`,
// by hand). Its kubelet is then stopped, because it would end pods that it does
// not know, and critest, built from its Go module into the cache, runs in the
// node against /run/containerd/containerd.sock. Then the kubelet is started, and
// the cluster has to be whole again.
//
// No image registry can be reached from the node, and upstream's test images
// cannot be had. So the images are made here, from Debian's busybox and the
// program in standin, under the names that critest asks for, and that same
// program serves them in the node as a registry that containerd uses in place of
// every other. The specs that pull, list and remove images run against it.
//
// # What may be missing
//
// Exclusions is a table of the specs that do not count, each with the reason. It
// is exact: the test fails when a spec fails, when one is skipped that is not in
// the table, and when an entry of the table names no spec of critest. The number of specs that passed, failed and were skipped
// goes to out/figures-e2e-upstream.json; critest's own report and log are
// out/critest.json and out/critest.log.
//
// # One spec by hand
//
//	CRITEST_FOCUS='should support execSync ' go test -tags e2e_upstream -v ./test/upstream
//
// runs the specs whose names match the regular expression. With CRITEST_BARE=1 the
// host has the new containerd to begin with, and no cluster: half a minute, where
// everything is cached. No figures are recorded then.
package upstream
