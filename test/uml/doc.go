// Package uml runs a command as root in a Linux kernel of its own, User-Mode Linux: an ordinary program, which boots in
// a second and needs neither root nor virtualisation on the host. Package kernel builds it.
//
// The guest's / is an overlay: the host's / as the lower layer, read only, and a tmpfs as the upper one. So the command
// has all files of the host, and nothing it writes reaches the host, except under the directories of Command.Writable.
// That prevents accidents; it is not a security boundary.
//
// The guest's init is the program that called Run: its main must begin with a call of Init. All state of one run is in
// one directory of the host, removed at the end, and in one process group, killed at the end.
package uml
