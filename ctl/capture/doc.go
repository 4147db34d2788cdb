// Package capture records packets of pods on several nodes in one file, ordered by time: the part of "fairleadctl
// capture" that is not the command line.
//
// Each node runs "fairleadctl capture --node-local", which writes a pcapng file to its standard output
// (https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-03.html). The caller reads these streams and merges them.
// There is no other protocol: Wireshark can open what a node sends.
package capture
