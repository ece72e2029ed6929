// Package uml makes throwaway machines of User-Mode Linux: a Linux kernel as
// one ordinary process of this machine (Debian's package user-mode-linux), with
// a disk image, cgroup v2 and kernel settings of its own. A Machine is a
// host.Machine.
//
//	image, err := uml.Image(ctx, os.Stderr)
//	m, err := uml.New(uml.Spec{Name: "node", IP: "10.89.0.11", Image: image})
//	defer m.Close()
//	err = m.Boot(ctx)
//	res, err := m.Exec(ctx, host.Command("systemctl", "--failed"))
//	err = m.Crash() // the power goes
//
// # What a crash is
//
// SIGKILL of the kernel. Its page cache is gone, and with it every byte that was
// written and not synced: a guest writes to its disk only when it is asked to
// (fsync, sync), or when memory gets short, never because some time has passed.
// The file system is ext4 as forgiving as it must be and no more: noauto_da_alloc
// and data=writeback take away what it does beyond its promise for programs that
// rename without syncing first.
//
// It is no disk that lies: what the guest's kernel has handed to it stays, in
// that order, though a request may be torn.
//
// # How a guest is reached
//
// There is no network. Commands go over its first serial port, see package link;
// what CopyIn and WriteFile bring is read from a directory of this machine
// through hostfs and is on the guest's disk when they return. Inside, the
// machine's address is on a dummy device, so that the node's own programs reach
// each other; nothing outside does.
//
// # What is left behind
//
// Nothing. The kernel is PID 1 of a PID namespace, so that its helpers end with
// it, and it ends with the process that started it. The disk of a process that
// was killed is removed by the next New.
package uml
