// Package rows keeps br-uplink in Open vSwitch's database (ovs-vswitchd.conf.db(5)), whether ovsdb-server runs or not:
// rows that stay there have the next start of Open vSwitch take the NIC.
//
// What is ours, as a process with no memory sees it: the Bridge with "fairlead=uplink" in external_ids, and all its
// ports. "fairlead-boot-id" beside it names the boot in which it was made. A bridge of that name without the mark is
// somebody else's and refused.
//
// FindMarked and RemoveMarked are for all that bears any mark of Fairlead's, also package ovsdb's: at an uninstall it
// all goes, whether ovsdb-server runs or not.
//
// A transaction is one request on ovsdb-server's socket (RFC 7047, 4.1.3), or one run of ovsdb-tool on the database's
// file, which locks it only for a change. There is no replica and nothing to keep up.
package rows
