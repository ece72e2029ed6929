// Package host makes throwaway Linux hosts: systemd as PID 1 of fresh
// namespaces, on a disk of its own, on one machine, in under a second.
//
// # What a host is
//
// A host is a process tree in its own mount, UTS, IPC, PID, cgroup and network
// namespaces. Its "/" is an overlay of read-only layers (a Debian root file
// system, built once, see Base, and whatever Spec.Layers adds) and of the
// host's own upper directory. Its /var is a plain directory of the machine's
// disk, bind-mounted, because containerd's overlayfs snapshotter cannot sit on
// another overlay. Upper directory and /var together are the host's disk: they
// outlive PowerOff and Crash, Boot finds them again, and Snapshot copies them.
//
// Hosts live on a Ground: a bridge in a network namespace of its own, with
// 10.89.0.1 as its gateway. Two grounds, also of two processes, can have hosts
// of the same name and address. The machine's own network is never touched.
//
// # Use
//
//	func TestMain(m *testing.M) {
//		host.Reexec() // first: this binary is also what boots and enters hosts
//		os.Exit(m.Run())
//	}
//
//	g, err := host.Open(ctx, host.Options{Progress: os.Stderr})
//	defer g.Close()
//	node, err := g.Add(ctx, host.Spec{Name: "node", IP: "10.89.0.11"})
//	err = node.Boot(ctx)
//	res, err := node.Exec(ctx, host.Cmd{Args: []string{"systemctl", "--failed"}})
//
// # What is shared with the machine
//
// The kernel. What the kubelet and systemd change in it beyond namespaces
// (kernel.panic, vm.overcommit_memory and a few more, see kernel.go) is saved
// before the first ground opens and put back when the last one goes. The page
// cache too: a Crash ends every process of the host at once, but is no power
// cut, what was written and not synced is still there.
//
// # What is left behind
//
// Nothing. Every mount is made inside the host's own namespace, so it goes with
// the host's last process. Each host has a keeper process that ends the host
// when the process that opened the ground is gone, however it went, and the
// process that holds the bridge's namespace then removes cgroups, disks and
// restores the kernel's settings. What even that cannot do (it was killed too)
// is done by the next Open, or by Sweep. Only processes that the ground's own
// record names, by PID and start time, are ever ended. A ground opened with
// Options.Persist stays until it is closed through Attach.
//
// # Safety
//
// A program that believes to be PID 1 of a fresh machine empties /tmp and
// starts units. So systemd is executed only when, after pivot_root, "/" is the
// very directory that was mounted for the host (same device and inode), differs
// from the machine's root, and carries the file /etc/throwaway-host. Everything
// else ends with ErrRefused.
package host
