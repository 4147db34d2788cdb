// Package matrix runs traffic in a cluster while a component fails, and reports what was lost: each path from one
// network namespace to another carries a stream of one flow, a stream in which each datagram starts a flow, and HTTP
// requests, each over its own connection.
package matrix
