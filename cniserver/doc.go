// Package cniserver is the agent's end of the CNI: it takes what the runtime
// gave the shim (package shim) from a unix socket, checks it against the CNI
// spec, calls a Handler and answers in the version of the spec that the
// network configuration asks for.
//
// What a call is allowed to do beside others:
//
//   - ADD, DEL and CHECK of one attachment (container ID and interface) run one
//     after the other, in the order in which they arrived. Different
//     attachments do not wait for each other.
//   - A GC runs alone. The spec wants the runtime to see to that (section 3);
//     a GC beside an ADD would take away what the ADD makes.
//   - STATUS waits for nobody.
//
// A call ends early, by its context, when the caller hangs up, when
// wire.ServerDeadline has passed, or when the agent stops and the call does not
// finish in time. The next call of the same attachment waits until the handler
// has really returned.
//
// A DEL asks less than the other verbs: it must also work, and clean up, when
// the configuration or the arguments are no longer what they were at the ADD.
//
// The only thing that this package makes is the socket. It knows it by its
// path: a socket there on which nobody answers is a dead agent's.
package cniserver
