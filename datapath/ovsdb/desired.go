package ovsdb

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/fairlead-cni/fairlead/api"
)

// Desired is the bridge with all its ports.
type Desired struct {
	Bridge string
	// DatapathType is "system" (the kernel; also the empty string) or "netdev".
	DatapathType string
	// Prefixes are, by number of a flow table, the fields whose prefixes Open
	// vSwitch is to track in it (ovs-vswitchd.conf.db(5), Flow_Table prefixes),
	// so that a packet's megaflow is no narrower than the flow it met. Without
	// it an IPv6 destination beyond the node is a megaflow of its own.
	Prefixes map[int][]string
	Gateway  GatewayPort
	// Tunnel is nil where no peer is reached through a tunnel.
	Tunnel *TunnelPort
	// Uplink is nil where no frames of the underlay come to the bridge.
	Uplink *UplinkPort
	Pods   []api.Attachment
	// Zones are of the datapath, which other bridges of its type share.
	Zones Zones
}

// GatewayPort is the node's own port, of type internal.
type GatewayPort struct {
	Name string
	MAC  api.MAC
	// MTU is in bytes.
	MTU int
}

// TunnelPort is the one port for all peers; flows set the far end.
type TunnelPort struct {
	Name string
	// Type is "geneve", "vxlan" or "gre".
	Type string
	// DstPort is the UDP port; 0 is the type's own. gre has none.
	DstPort int
	// Csum has outer checksums sent.
	Csum bool
	// LocalIP is the node's tunnel endpoint. The zero Addr leaves the choice
	// to the routing table.
	LocalIP netip.Addr
}

// UplinkPort is the port through which the underlay's frames come and go, with
// their VLAN tags.
type UplinkPort struct {
	Name string
	// Type and Options are the Interface's columns: "patch" and its peer, say.
	Type    string
	Options map[string]string
}

// OpenFlow port numbers asked for, so that they are the same on every node and
// after every restart. Those of pods are the node's own choice: see numbers.
const (
	tunnelOFPort  = 1
	gatewayOFPort = 2
	uplinkOFPort  = 3
)

// wantPort is a port as it shall be in the database.
type wantPort struct {
	name, what string          // what is for the log
	mark       string          // empty for the bridge's own port, which the bridge marks
	pod        *api.Attachment // nil for other ports
	ifaceType  string
	mac        string            // empty leaves the column alone
	mtu        int               // 0 leaves the column alone
	options    map[string]string // nil leaves the column alone
	ofport     int               // 0 leaves the column alone
}

// ids are the port's external_ids that are ours: the mark and, for a pod, the record.
func (w wantPort) ids() map[string]string {
	switch {
	case w.pod != nil:
		return encode(*w.pod)
	case w.mark == "":
		return nil
	}
	return map[string]string{markKey: w.mark}
}

// validate checks d, whose ports are given. What have says already, the ports that are there, is right.
func (d Desired) validate(ports []wantPort, have map[string]portIface) error {
	if d.Bridge == "" || d.Gateway.Name == "" {
		return errors.New("the bridge or the gateway has no name")
	}
	names := map[string]bool{d.Bridge: true}
	for _, w := range ports {
		if w.name == "" {
			return fmt.Errorf("%s has no port name", w.what)
		}
		if names[w.name] {
			return fmt.Errorf("duplicate port name %s", w.name)
		}
		names[w.name] = true
	}
	if d.Tunnel != nil {
		if err := d.Tunnel.validate(); err != nil {
			return err
		}
	}
	for _, w := range ports {
		if w.pod == nil || have[w.name].record.says(*w.pod) {
			continue
		}
		if err := checkRecord(*w.pod); err != nil {
			return err
		}
	}
	return nil
}

func (t TunnelPort) validate() error {
	if !slices.Contains([]string{"geneve", "vxlan", "gre"}, t.Type) {
		return fmt.Errorf("invalid tunnel type %q: want geneve, vxlan or gre", t.Type)
	}
	if t.DstPort < 0 || t.DstPort > 65535 || t.DstPort != 0 && t.Type == "gre" {
		return fmt.Errorf("a tunnel of type %s cannot use destination port %d", t.Type, t.DstPort)
	}
	return nil
}

// checkRecord refuses an attachment whose record would read different.
func checkRecord(a api.Attachment) error {
	if err := checkText(a); err != nil {
		return err
	}
	got, err := decode(a.HostIf, encode(a))
	if err == nil && !got.Equal(a) {
		err = fmt.Errorf("its record would be %+v, not %+v", got, a)
	}
	if err != nil {
		return fmt.Errorf("attachment of pod %q: %w", a.Pod(), err)
	}
	return nil
}

// ports are all ports but the bridge's own, those of the pods last and in their order.
func (d Desired) ports() []wantPort {
	g := d.Gateway
	ports := []wantPort{{
		name: g.Name, what: "gateway port", mark: markGateway, ifaceType: "internal",
		mac: g.MAC.String(), mtu: g.MTU, ofport: gatewayOFPort,
	}}
	if t := d.Tunnel; t != nil {
		ports = append(ports, wantPort{
			name: t.Name, what: t.Type + " tunnel port", mark: markTunnel, ifaceType: t.Type,
			options: t.options(), ofport: tunnelOFPort,
		})
	}
	if u := d.Uplink; u != nil {
		ports = append(ports, wantPort{
			name: u.Name, what: "uplink port", mark: markUplink, ifaceType: u.Type,
			options: u.Options, ofport: uplinkOFPort,
		})
	}
	for i, a := range d.Pods {
		ports = append(ports, wantPort{name: a.HostIf, what: "port of pod " + a.Pod(), mark: markPod, pod: &d.Pods[i]})
	}
	return ports
}

// options are the Interface's options (ovs-vswitchd.conf.db(5), "Tunnel
// Options"). The flows choose the far end. The key is the flows' too and 0
// while they set none: a fixed key would be one more thing for nodes of
// different versions to agree on.
func (t TunnelPort) options() map[string]string {
	o := map[string]string{"remote_ip": "flow", "key": "flow"}
	if t.LocalIP.IsValid() {
		o["local_ip"] = t.LocalIP.String()
	}
	if t.DstPort != 0 {
		o["dst_port"] = strconv.Itoa(t.DstPort)
	}
	if t.Csum {
		o["csum"] = "true"
	}
	return o
}
