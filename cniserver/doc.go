// Package cniserver is the agent's side of the CNI: it receives on a unix socket what the runtime passed to the shim
// (package shim), validates it against the CNI spec, calls a Handler and responds in the version of the spec that the
// network configuration asks for.
//
// Concurrency of calls:
//
//   - ADD, DEL and CHECK of one attachment (container ID and interface) run one after the other, in the order in which
//     they arrived. Different attachments do not wait for each other.
//   - A GC runs alone. The spec requires the runtime to ensure that (section 3); a GC concurrent with an ADD would
//     remove what the ADD creates.
//   - STATUS does not wait.
//
// A call ends early, by its context, when the caller closes the connection, when wire.ServerDeadline has passed, or
// when the agent stops and the call does not finish in time. The next call of the same attachment waits until the
// handler has actually returned.
//
// A DEL requires less than the other verbs: it must also work, and clean up, when the configuration or the arguments
// have changed since the ADD.
//
// The only thing that this package creates is the socket. It recognises it by its path: a socket there without a
// listener is that of a dead agent.
package cniserver
