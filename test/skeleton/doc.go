// Package skeleton is a kubeadm node that is nothing but files: a directory as
// the host's root, with all that the steps look at, and beside it what the
// node's services are doing, on the disk as well. A process may be killed at any
// instant, and the next one that opens the directory finds the node as it was.
//
// Programs are texts that say what they are, such as "containerd 1.7.35": the
// node's systemd runs the text that lies there when a unit is started, and
// containerd, the kubelet and kubeadm behave as that version does. Nothing is
// answered that was not asked for in an upgrade: what is unexpected is an error.
//
// Every change goes by one hostexec.Watch, also those of the API server's
// objects and those that kubeadm makes by itself: it is where a test counts,
// kills, or lets the change fail.
package skeleton
