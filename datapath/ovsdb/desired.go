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
	// Prefixes are, by flow table number, the fields for which Open vSwitch tracks prefixes (ovs-vswitchd.conf.db(5),
	// Flow_Table prefixes), so a packet's megaflow is no narrower than the flow it matched. Without it every IPv6
	// destination beyond the node gets its own megaflow.
	Prefixes map[int][]string
	Gateway  GatewayPort
	// Tunnel is nil if no peer is reached through a tunnel.
	Tunnel *TunnelPort
	// Uplink is nil if no underlay frames reach the bridge.
	Uplink *UplinkPort
	Pods   []api.Attachment
	// Zones are the datapath's, which other bridges of its type share.
	Zones Zones
}

// GatewayPort is the node's own port, of type internal.
type GatewayPort struct {
	Name string
	MAC  api.MAC
	// MTU is in bytes.
	MTU int
}

// TunnelPort is the single port for all peers; flows set the remote endpoint.
type TunnelPort struct {
	Name string
	// Type is "geneve", "vxlan" or "gre".
	Type string
	// DstPort is the UDP port; 0 is the type's default. gre has none.
	DstPort int
	// Csum enables outer checksums.
	Csum bool
	// LocalIP is the node's tunnel endpoint. The zero Addr leaves it to the routing table.
	LocalIP netip.Addr
}

// UplinkPort is the port that carries underlay frames in both directions, with their VLAN tags.
type UplinkPort struct {
	Name string
	// Type and Options are Interface columns: for example "patch" and its peer.
	Type    string
	Options map[string]string
}

// Requested OpenFlow port numbers, so that they are the same on every node and after every restart. Each node chooses
// those of its pods: see numbers.
const (
	tunnelOFPort  = 1
	gatewayOFPort = 2
	uplinkOFPort  = 3
)

// wantPort is a port as wanted in the database.
type wantPort struct {
	name, what string          // what is for logs
	mark       string          // empty for the bridge's own port, which the bridge marks
	pod        *api.Attachment // nil for other ports
	ifaceType  string
	mac        string            // empty leaves the column alone
	mtu        int               // 0 leaves the column alone
	options    map[string]string // nil leaves the column alone
	ofport     int               // 0 leaves the column alone
}

// ids returns Fairlead's external_ids of the port: the mark and, for a pod, the record.
func (w wantPort) ids() map[string]string {
	switch {
	case w.pod != nil:
		return encode(*w.pod)
	case w.mark == "":
		return nil
	}
	return map[string]string{markKey: w.mark}
}

// validate checks d and its ports. Ports that are in have as wanted need no check.
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
		if w.pod == nil || have[w.name].record.matches(*w.pod) {
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

// checkRecord rejects an attachment whose record would not decode to the same.
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

// ports returns all ports except the bridge's own, pod ports last and in their order.
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

// options returns the Interface's options (ovs-vswitchd.conf.db(5), "Tunnel Options"). Flows set the remote endpoint.
// They may set the key too, which is 0 otherwise: a fixed key would be one more thing for nodes of different versions
// to agree on.
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
