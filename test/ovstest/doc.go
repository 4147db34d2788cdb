// Package ovstest gives a test an Open vSwitch of its own: ovsdb-server and ovs-vswitchd with their sockets, database
// and logs in a new directory.
//
// There are three datapaths. Dummy needs neither root nor a kernel module: it runs the real OVSDB and OpenFlow code
// over ports that exist only inside ovs-vswitchd. Netdev is the userspace datapath over real devices and needs root
// and, to isolate it from the machine's own devices, a network namespace. System is the kernel's datapath and needs the
// same.
//
// Everything that a test starts is a child of the test process, is stopped by its process ID, and is killed by the
// kernel if the test process dies first. A test without an installed Open vSwitch fails: a skipped test would look like
// a passed one.
package ovstest
