// Package capture records the packets of pods on several nodes in one file, in the order of time: the part of
// "fairleadctl capture" that is not the command line.
//
// On each node runs "fairleadctl capture --node-local", which writes a pcapng file to its standard output
// (https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-03.html). The caller reads these streams and merges them.
// There is no other protocol: what a node sends can be looked at with Wireshark.
package capture
