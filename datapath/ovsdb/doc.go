// Package ovsdb keeps the bridge and its ports in Open vSwitch's database
// (ovs-vswitchd.conf.db(5)) and holds there, and nowhere else on the node, the
// record of every attachment.
//
// What is ours, as a process with no memory sees it, all by the key "fairlead"
// in external_ids:
//
//	Bridge  fairlead=bridge
//	Port    fairlead=gateway, fairlead=tunnel, fairlead=uplink or fairlead=pod
//	Port    fairlead=retired: it was a pod's, and only waits to be removed
//	CT_Zone, CT_Timeout_Policy, and a Datapath that was not there: fairlead=conntrack
//
// A pod's Port carries the attachment in further keys that begin with
// "fairlead-"; keys of others beside them are left alone. A port whose record
// cannot be read is still ours: it is reported, and deleted only once its
// device is gone. A port on our bridge without the mark belongs to somebody
// else and is never changed, unless it has the name of a port that we want.
//
// Writing is one transaction for everything that is missing or different, as
// many ports in one transaction cost little more than one. Each transaction that
// concerns ovs-vswitchd raises next_cfg; ovs-vswitchd answers by raising cur_cfg, which tells a
// switch that is slow from one that is not there.
package ovsdb
