// Package uml runs a command as root in a Linux kernel of its own, User-Mode Linux:
// an ordinary program, which boots in a second and needs neither root nor
// virtualisation on the host. Package kernel builds it.
//
// The guest's / is an overlay: the host's / below, read only, and a tmpfs above.
// So the command finds all that the host has, and nothing it writes reaches the
// host, except under the directories of Command.Writable. That keeps accidents out;
// it is no wall against a guest that wants through.
//
// The guest's init is the program that called Run: its main must begin with a call
// of Init. All that belongs to one run is in one directory of the host, removed at
// the end, and in one process group, killed at the end.
package uml
