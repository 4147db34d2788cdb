// Package ovsdb maintains the bridge and its ports in Open vSwitch's database (ovs-vswitchd.conf.db(5)) and stores
// there, and nowhere else on the node, the record of every attachment.
//
// Fairlead's rows, as a process without state recognises them, all by the key "fairlead" in external_ids:
//
//	Bridge  fairlead=bridge
//	Port    fairlead=gateway, fairlead=tunnel, fairlead=uplink or fairlead=pod
//	Port    fairlead=retired: was a pod's, and only waits to be removed
//	CT_Zone, CT_Timeout_Policy, and a Datapath that was not there: fairlead=conntrack
//
// A pod's Port carries the attachment in further keys that begin with "fairlead-"; other keys are left alone. A port
// whose record cannot be read is still Fairlead's: it is reported, and deleted only once its device is gone. A port on
// Fairlead's bridge without the mark is not Fairlead's and is never changed, unless it has the name of a wanted port.
//
// Everything missing or different is written in one transaction, as many ports in one transaction cost little more than
// one. Each transaction that concerns ovs-vswitchd raises next_cfg; ovs-vswitchd confirms it by raising cur_cfg, which
// distinguishes a slow ovs-vswitchd from one that is down.
package ovsdb
