// Package image has what is in the image of the Dockerfile and is not a program of Go, for tests. The scripts beside it
// build the image.
package image

import _ "embed"

// IPTables calls iptables in the form that the node uses, a program for sh(1).
//
//go:embed iptables
var IPTables string
