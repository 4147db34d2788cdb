package ovsdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/api"
)

// Observed is what the database says about one bridge. Its lists must not be changed: they are shared.
type Observed struct {
	// BridgePresent and BridgeOurs: the bridge exists, and it or one of its ports has Fairlead's mark.
	BridgePresent, BridgeOurs bool
	// DatapathType is "system" (the kernel) or "netdev".
	DatapathType string
	// Devices are the interfaces of the userspace datapath, of all bridges and without pods', by name; none with another
	// DatapathType.
	Devices                 []string
	Gateway, Tunnel, Uplink Port
	// Pods have a readable record; Broken are pod ports without one. Both are sorted by port name.
	Pods   []PodPort
	Broken []BrokenPort
	// Retired are the names of former pod ports that wait for RemoveRetired.
	Retired []string
	// Zones are the numbers of the datapath's conntrack zones that have Fairlead's timeouts, sorted.
	Zones []uint16
	// Foreign are the names of ports on the bridge that are not Fairlead's.
	Foreign []string
	// Pending says that ovs-vswitchd has not yet applied the last change. If that lasts, ovs-vswitchd is down or hangs.
	Pending bool
	// DatapathLost says that the datapath was deleted under a running ovs-vswitchd, which does not recreate it before its
	// next start.
	DatapathLost bool
	// RestoreWait applies to all bridges, even if this one does not exist.
	RestoreWait RestoreWait
}

// Port is the gateway, tunnel or uplink port; all fields are empty if it does not exist.
type Port struct {
	Present bool
	Name    string
	// OFPort is the OpenFlow port number, 0 while ovs-vswitchd has assigned none.
	OFPort uint32
	// Error is what keeps the port from working: ovs-vswitchd's reason for assigning no number, or that the device is
	// gone.
	Error string
}

// PodCount returns the number of pod ports.
func (o Observed) PodCount() (n int) {
	for _, p := range o.Pods {
		if p.ContainerID != api.ReachEnd {
			n++
		}
	}
	return n
}

// PodPort is the port of a pod, with its record. The port's name is HostIf.
type PodPort struct {
	api.Attachment
	// OFPort and Error are as in Port.
	OFPort uint32
	Error  string
	// Requested is the number that ovs-vswitchd will assign if it can, 0 if it may choose. No other port has it.
	Requested uint32
}

// BrokenPort is a port of a pod whose record in external_ids cannot be read.
type BrokenPort struct{ Name, Reason string }

// Observe reads the bridge called name from the replica of the current
// connection. It fails while there is none: an old or empty replica must not be taken for the current state. It takes
// no context: it waits only for the rest of one update, 1 s at most.
//
//nolint:contextcheck // see above
func (db *DB) Observe(name string) (Observed, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, s, err := db.snapshot(ctx)
	if err != nil {
		return Observed{}, fmt.Errorf("observing bridge %s: %w", name, err)
	}
	return c.replica.observed(s, name), nil
}

// observed is the pure part of Observe.
func observed(s snapshot, name string) Observed {
	o := Observed{Pending: s.pending(), RestoreWait: s.root.restoreWait()}
	b, ok := s.bridges[name]
	if !ok {
		return o
	}
	o.BridgePresent, o.BridgeOurs, o.DatapathType = true, isOurs(s, b), datapathType(b.DatapathType)
	if o.DatapathType == "netdev" {
		o.Devices = s.userspaceDevices()
	}
	dp := s.datapaths[s.root.Datapaths[o.DatapathType]]
	for _, number := range s.ourZones(dp) {
		if s.zones[dp.CTZones[number]].TimeoutPolicy != nil {
			o.Zones = append(o.Zones, uint16(number))
		}
	}
	if own, ok := s.portsOf(b)[name]; ok {
		o.DatapathLost = own.iface.lost()
	}
	for _, p := range s.portsOf(b) {
		asPort := Port{Present: true, Name: p.Name, OFPort: p.iface.number(), Error: p.iface.problem()}
		switch p.ExternalIDs[markKey] {
		case markGateway:
			o.Gateway = asPort
		case markTunnel:
			o.Tunnel = asPort
		case markUplink:
			o.Uplink = asPort
		case markPod:
			if p.record.err != nil {
				o.Broken = append(o.Broken, BrokenPort{p.Name, p.record.err.Error()})
			} else {
				o.Pods = append(o.Pods, PodPort{p.record.pod, asPort.OFPort, asPort.Error, p.iface.requested()})
			}
		case markRetired:
			o.Retired = append(o.Retired, p.Name)
		default:
			if p.Name != b.Name {
				o.Foreign = append(o.Foreign, p.Name)
			}
		}
	}
	slices.SortFunc(o.Pods, func(a, b PodPort) int { return cmp.Compare(a.HostIf, b.HostIf) })
	slices.SortFunc(o.Broken, func(a, b BrokenPort) int { return cmp.Compare(a.Name, b.Name) })
	slices.Sort(o.Retired)
	slices.Sort(o.Foreign)
	o.Pods, o.Broken = slices.Clip(o.Pods), slices.Clip(o.Broken)
	o.Retired, o.Foreign = slices.Clip(o.Retired), slices.Clip(o.Foreign)
	return o
}

func (s snapshot) userspaceDevices() (names []string) {
	for _, b := range s.bridges {
		if b.DatapathType != "netdev" {
			continue
		}
		for name, p := range s.portsOf(b) {
			if p.ExternalIDs[markKey] != markPod {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// isOurs reports whether b or one of its ports has Fairlead's mark: the bridge's external_ids may have been cleared.
func isOurs(s snapshot, b bridge) bool {
	if b.ExternalIDs[markKey] == markBridge {
		return true
	}
	for _, p := range s.portsOf(b) {
		if portIsOurs(p.port) {
			return true
		}
	}
	return false
}

func portIsOurs(p *port) bool {
	switch p.ExternalIDs[markKey] {
	case markGateway, markTunnel, markUplink, markPod, markRetired:
		return true
	}
	return false
}

// datapathType spells out the default.
func datapathType(column string) string { return cmp.Or(column, "system") }

// snapshot reads the replica of the current connection as soon as it is consistent.
func (db *DB) snapshot(ctx context.Context) (*conn, snapshot, error) {
	c, err := db.current()
	if err != nil {
		return nil, snapshot{}, err
	}
	for {
		next := db.next()
		s := c.replica.read()
		if s.consistent() {
			return c, s, nil
		}
		select {
		case <-next: // the rest of the update
		case <-time.After(10 * time.Millisecond):
			// Events arrive later than the rows; don't rely on them.
		case <-ctx.Done():
			if s.root.UUID == "" {
				return c, s, errors.New(`the database has no Open_vSwitch row: Open vSwitch's start script creates it with "ovs-vsctl init"`)
			}
			return c, s, errors.New("the replica of the database is inconsistent")
		}
	}
}

// WaitOFPorts waits until ovs-vswitchd has assigned every named port an OpenFlow port number. If ctx ends first the
// error says for each port what is wrong, or that ovs-vswitchd does not answer.
//
// It does not stop at an error in the database: ovs-vswitchd reports one for a device that it sees before it is
// complete, and retries.
func (db *DB) WaitOFPorts(ctx context.Context, names ...string) error {
	ctx, cancel := limit(ctx)
	defer cancel()
	for {
		next := db.next()
		missing, err := db.withoutNumber(names)
		if err != nil {
			return fmt.Errorf("waiting for OpenFlow port numbers: %w", err)
		}
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return fmt.Errorf("waiting for OpenFlow port numbers: %s", strings.Join(missing, "; "))
		}
	}
}

// withoutNumber says which of the ports have no OpenFlow port number, and the reason.
func (db *DB) withoutNumber(names []string) (missing []string, err error) {
	c, err := db.current()
	if err != nil {
		return nil, err
	}
	s := c.replica.read()
	byName := make(map[string]*iface, len(names))
	for _, i := range s.ifaces {
		if slices.Contains(names, i.Name) {
			byName[i.Name] = i
		}
	}
	for _, name := range names {
		switch i, ok := byName[name]; {
		case !ok:
			missing = append(missing, "port "+name+" is not in the database")
		case i.number() != 0:
		case i.problem() != "":
			missing = append(missing, fmt.Sprintf("port %s: %s", name, i.problem()))
		default:
			missing = append(missing, "port "+name+" has no number")
		}
	}
	if len(missing) > 0 {
		missing = append(missing, s.problems()...)
	}
	return missing, nil
}

// problems describes what keeps whole bridges from working.
func (s snapshot) problems() (out []string) {
	if s.pending() {
		return []string{fmt.Sprintf("ovs-vswitchd does not answer (it has applied configuration %d of %d): is it running?",
			s.root.CurCfg, s.root.NextCfg)}
	}
	for _, b := range s.bridges {
		if b.DatapathID != nil || !isOurs(s, b) {
			continue
		}
		text := fmt.Sprintf("ovs-vswitchd could not create bridge %s with datapath type %s: see its log",
			b.Name, datapathType(b.DatapathType))
		if datapathType(b.DatapathType) == "system" {
			text += ". That type needs the kernel module openvswitch: load it (modprobe openvswitch) and restart ovs-vswitchd"
		}
		out = append(out, text)
	}
	return out
}
