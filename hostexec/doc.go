// Package hostexec is being on the host: its files, its commands, its systemd
// and its namespaces.
//
// A Host is a value made of three parts that can be replaced one by one:
//
//   - FS, a file system below a root directory. The root is "/" on the node,
//     "/proc/1/root" in a container that shares the host's PID namespace, and
//     a temporary directory in tests. Symbolic links, absolute ones included,
//     are resolved inside the root.
//   - Commands, which runs programs with an argv (never a shell), with bounded
//     output, and returns errors that carry argv, exit code and stderr.
//   - Units, which is systemd over D-Bus: each job is awaited and has to be
//     "done".
//
// Enter moves the process into the host's namespaces by setns(2) and
// re-executes it there, without any helper binary of host or image.
//
// Files are replaced by rename only (FS.Replace): a reader sees the old or the
// new file, never a part of one, and a running program keeps its old file.
package hostexec
