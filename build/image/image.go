// Package image embeds files of the image that are not Go programs, for tests. The scripts beside it build the image.
package image

import _ "embed"

// IPTables calls the variant of iptables that the node uses; a program for sh(1).
//
//go:embed iptables
var IPTables string
