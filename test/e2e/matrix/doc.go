// Package matrix keeps a cluster busy while something dies in it, and tells what that cost: on each way from one
// network namespace to another run a stream of one flow, a stream whose datagrams are the first of a flow each, and
// HTTP requests, each over a connection of its own.
package matrix
