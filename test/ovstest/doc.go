// Package ovstest gives a test an Open vSwitch of its own: ovsdb-server and
// ovs-vswitchd with their sockets, database and logs in a fresh directory.
//
// Three datapaths are offered. Dummy needs neither root nor a kernel module: it
// runs the real OVSDB and OpenFlow code over ports that exist only inside
// ovs-vswitchd. Netdev is the userspace datapath over real devices and needs
// root and, so that the machine's own devices stay out of it, a network
// namespace. System is the kernel's datapath and needs the same.
//
// Everything that a test starts is a child of the test process, is ended by
// its process ID, and is killed by the kernel should the test process die
// first. A test that finds no Open vSwitch fails: a skipped test would look
// like a passed one.
package ovstest
