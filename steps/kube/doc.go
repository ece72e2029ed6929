// Package kube is the API server as the steps use it: clients from the pod's
// service account or from a kubeconfig of the host, and the patience that an
// upgrade needs while the API server is away.
//
// The clients make no request at their construction, keep no cache and start
// no watch: what a step holds in memory is one answer at a time.
package kube
