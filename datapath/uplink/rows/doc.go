// Package rows maintains br-uplink in Open vSwitch's database (ovs-vswitchd.conf.db(5)), whether or not ovsdb-server
// runs: with rows left there, the next start of Open vSwitch attaches the NIC.
//
// Fairlead's are, as a process without state recognises them: the Bridge with "fairlead=uplink" in external_ids, and
// all its ports. "fairlead-boot-id" beside it names the boot in which it was created. A bridge of that name without the
// mark is not Fairlead's and is refused.
//
// FindMarked and RemoveMarked handle everything with any mark of Fairlead's, including package ovsdb's: an uninstall
// removes it all, whether or not ovsdb-server runs.
//
// A transaction is one request on ovsdb-server's socket (RFC 7047, 4.1.3), or one run of ovsdb-tool on the database
// file, which locks it only for a change. There is no replica to maintain.
package rows
