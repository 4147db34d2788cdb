package ovstest

import (
	"strconv"
	"strings"
)

// Port is a port that AddBridge creates.
type Port struct {
	Name string
	// OFPort is the requested OpenFlow port number, 1 to 65279; with 0 ovs-vswitchd chooses it.
	OFPort uint32
	// Type is the Interface's type column. Empty means a port without a device on the dummy datapath and an existing
	// device on netdev.
	Type string
	// Columns are further settings of the Interface as ovs-vsctl reads them,
	// such as "options:remote_ip=flow".
	Columns []string
}

// AddBridge creates a bridge of the instance's datapath type in fail mode secure, so that it has no flows, and adds
// ports, all in one transaction. It returns when ovs-vswitchd has applied it.
func (o *OVS) AddBridge(name string, ports ...Port) {
	o.t.Helper()
	args := []string{"add-br", name, "--", "set", "Bridge", name,
		"datapath_type=" + string(o.datapath), "fail_mode=secure"}
	for _, p := range ports {
		args = append(args, "--", "add-port", name, p.Name, "--", "set", "Interface", p.Name)
		args = append(args, p.columns(o.datapath)...)
	}
	o.Ctl(args...)
}

func (p Port) columns(dp Datapath) []string {
	kind := p.Type
	if kind == "" && dp == Dummy {
		kind = "dummy"
	}
	columns := append([]string{"type=" + strconv.Quote(kind)}, p.Columns...)
	if p.OFPort != 0 {
		columns = append(columns, "ofport_request="+strconv.FormatUint(uint64(p.OFPort), 10))
	}
	return columns
}

// OFPort is the OpenFlow port number that ovs-vswitchd assigned to a port.
func (o *OVS) OFPort(port string) uint32 {
	o.t.Helper()
	out := o.Ctl("--bare", "get", "Interface", port, "ofport")
	n, err := strconv.ParseUint(strings.TrimSpace(out), 10, 32)
	if err != nil {
		o.t.Fatalf("ovstest: port %s has no OpenFlow port number: %q", port, strings.TrimSpace(out))
	}
	return uint32(n)
}

// Trace runs ofproto/trace for a packet in the syntax of a flow's match (ovs-fields(7)), e.g. "in_port=3,arp,arp_op=1",
// and returns its report.
func (o *OVS) Trace(bridge, packet string) string {
	o.t.Helper()
	return o.Appctl("ofproto/trace", bridge, packet)
}
