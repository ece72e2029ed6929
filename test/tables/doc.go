// Package tables tries what may happen to an upgrade at each of its changes, on
// nodes of the package skeleton: the process is killed there, or the change
// fails or hangs. Each case is one line of `go test -v`.
package tables
