// Package host creates the Linux hosts of a lab: nodes, the underlay and the host outside. Each is a set of network,
// mount and UTS namespaces, so that programs on it find their default paths, interfaces and host name as on a machine
// of their own. There is no PID namespace: a process ID means the same inside and outside. A host that runs containers
// has one, with a process 1, and IPC and cgroup namespaces as well (StartInit).
//
// The namespaces are pinned by bind mounts in the host's directory, ns/net, ns/mnt and so on; no process holds them. A
// process belongs to a host when all its threads are in one of the host's namespaces, by which Kill finds the
// processes, however they were started.
package host
