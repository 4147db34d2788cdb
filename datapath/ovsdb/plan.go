package ovsdb

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ovn-org/libovsdb/ovsdb"

	"github.com/fairlead-cni/fairlead/datapath/internal/ovsop"
)

// plan is a transaction being built.
type plan struct {
	ops     []ovsdb.Operation
	changes []string // in words, for the log
}

func (p *plan) record(format string, args ...any) {
	p.changes = append(p.changes, fmt.Sprintf(format, args...))
}

// protocols: 1.5 is Fairlead's, 1.0 and 1.3 are what other tools use.
func protocols() []string { return []string{"OpenFlow10", "OpenFlow13", "OpenFlow15"} }

// failMode secure: without Fairlead's flows nothing is forwarded.
const failMode = "secure"

// ensure plans what makes s contain d.
func ensure(s snapshot, d Desired) (plan, error) {
	wanted := d.ports()
	b, present := s.bridges[d.Bridge]
	have := s.portsOf(b)
	if err := d.validate(wanted, have); err != nil {
		return plan{}, err
	}
	if err := refuse(s, d, wanted); err != nil {
		return plan{}, err
	}
	var p plan
	var newPorts []string // UUIDs
	numbers := numbersOf(have)
	for i, w := range wanted {
		h, ok := have[w.name]
		if ok && h.ExternalIDs[markKey] == markRetired { // it may be removed at any moment
			p.removePorts(b, h.port.UUID)
			ok = false
		}
		if ok {
			p.updatePort(h, w)
		} else if h, other, ok := s.elsewhere(w.name, d.Bridge); ok {
			newPorts = append(newPorts, p.movePort(h, other, w))
		} else {
			if w.mark == markPod {
				w.ofport = numbers.allocate(w.name)
			}
			newPorts = append(newPorts, p.insertRows(fmt.Sprint(i), w))
			p.record("%s %s added", w.what, w.name)
		}
	}
	if present {
		p.updateBridge(b, d)
		p.updateTables(s, b, d)
		if len(newPorts) > 0 {
			p.mutate("Bridge", b.UUID, ovsop.Add("ports", ovsop.Refs(newPorts...)))
		}
	} else {
		p.insertBridge(s.root, d, newPorts)
	}
	p.updateZones(s, d, present)
	p.seal(s.root)
	return p, nil
}

// refuse returns why d cannot be applied without changing what is not Fairlead's.
func refuse(s snapshot, d Desired, wanted []wantPort) error {
	if b, ok := s.bridges[d.Bridge]; ok && !isOurs(s, b) {
		if foreign := observed(s, d.Bridge).Foreign; len(foreign) > 0 {
			return fmt.Errorf("bridge %s is not Fairlead's and has ports: %s; set ovsBridge to another name, "+
				`or remove the bridge if nothing needs it ("ovs-vsctl del-br %s")`, d.Bridge, strings.Join(foreign, ", "), d.Bridge)
		}
	}
	for _, w := range wanted {
		h, b, ok := s.elsewhere(w.name, d.Bridge)
		if !ok || w.mark == markPod || portIsOurs(h.port) { // a name only Fairlead uses, or moved manually
			continue
		}
		return fmt.Errorf("%s is wanted on bridge %s but is on bridge %s: "+
			`rename it in the configuration, or remove it there ("ovs-vsctl del-port %s %s")`,
			w.name, d.Bridge, b.Name, b.Name, w.name)
	}
	return nil
}

// elsewhere finds a port on a bridge other than the one called name.
func (s snapshot) elsewhere(port, name string) (portIface, bridge, bool) {
	for _, b := range s.bridges {
		if b.Name == name {
			continue
		}
		if h, ok := s.portsOf(b)[port]; ok {
			return h, b, true
		}
	}
	return portIface{}, bridge{}, false
}

// movePort plans to move a port from another bridge, and returns the reference to it.
func (p *plan) movePort(h portIface, from bridge, w wantPort) (uuid string) {
	p.removePorts(from, h.port.UUID)
	p.record("%s %s moved from bridge %s", w.what, w.name, from.Name)
	p.updatePort(h, w)
	return h.port.UUID
}

// insertBridge plans the bridge with its own port, which every bridge has.
func (p *plan) insertBridge(root openVSwitch, d Desired, ports []string) {
	ports = append(ports, p.insertRows("own", wantPort{name: d.Bridge, ifaceType: "internal"}))
	tables := ovsdb.OvsMap{GoMap: map[any]any{}}
	for _, number := range slices.Sorted(maps.Keys(d.Prefixes)) {
		tables.GoMap[number] = p.insertTable(number, d.Prefixes[number])
	}
	p.ops = append(p.ops, ovsop.Insert("Bridge", "bridge", ovsdb.Row{
		"name": d.Bridge, "datapath_type": datapathType(d.DatapathType), "fail_mode": failMode,
		"protocols": ovsop.Set(protocols()...), "external_ids": ovsop.Map(map[string]string{markKey: markBridge}),
		"flow_tables": tables, "ports": ovsop.Refs(ports...),
	}))
	p.mutate("Open_vSwitch", root.UUID, ovsop.Add("bridges", ovsop.Refs("bridge")))
	p.record("bridge %s added", d.Bridge)
}

func (p *plan) updateBridge(b bridge, d Desired) {
	row := ovsdb.Row{}
	if datapathType(b.DatapathType) != datapathType(d.DatapathType) {
		row["datapath_type"] = datapathType(d.DatapathType)
	}
	if !is(b.FailMode, failMode) {
		row["fail_mode"] = failMode
	}
	if got := slices.Sorted(slices.Values(b.Protocols)); !slices.Equal(got, protocols()) {
		row["protocols"] = ovsop.Set(protocols()...)
	}
	if len(b.Controller) > 0 { // its flows would mix with Fairlead's; setting it has removed those
		row["controller"] = ovsop.Set()
	}
	if b.STP {
		row["stp_enable"] = false
	}
	if b.RSTP {
		row["rstp_enable"] = false
	}
	if len(row) > 0 {
		p.update("Bridge", b.UUID, row)
		p.record("bridge %s: %s set", b.Name, strings.Join(slices.Sorted(maps.Keys(row)), ", "))
	}
	if b.ExternalIDs[markKey] != markBridge {
		p.setIDs("Bridge", b.UUID, b.ExternalIDs, map[string]string{markKey: markBridge})
		p.record("bridge %s marked as Fairlead's", b.Name)
	}
}

func (p *plan) insertTable(number int, prefixes []string) ovsdb.UUID {
	name := fmt.Sprintf("table_%d", number)
	p.ops = append(p.ops, ovsop.Insert("Flow_Table", name, ovsdb.Row{"prefixes": ovsop.Set(prefixes...)}))
	return ovsdb.UUID{GoUUID: name}
}

func (p *plan) updateTables(s snapshot, b bridge, d Desired) {
	for _, number := range slices.Sorted(maps.Keys(d.Prefixes)) {
		want := d.Prefixes[number]
		uuid, there := b.FlowTables[number]
		switch {
		case !there:
			table := ovsdb.OvsMap{GoMap: map[any]any{number: p.insertTable(number, want)}}
			p.mutate("Bridge", b.UUID, ovsop.Add("flow_tables", table))
		case !slices.Equal(slices.Sorted(slices.Values(s.tables[uuid].Prefixes)), slices.Sorted(slices.Values(want))):
			p.update("Flow_Table", uuid, ovsdb.Row{"prefixes": ovsop.Set(want...)})
		default:
			continue
		}
		p.record("bridge %s: table %d tracks prefixes of %s", b.Name, number, strings.Join(want, ", "))
	}
}

// insertRows plans a Port with its Interface, and returns the reference to it. It names the rows by suffix: the names
// of ports may contain characters that a named UUID must not.
func (p *plan) insertRows(suffix string, w wantPort) (uuid string) {
	row := w.columns(&iface{})
	row["name"] = w.name
	p.ops = append(p.ops, ovsop.Insert("Interface", "iface_"+suffix, row), ovsop.Insert("Port", "port_"+suffix,
		ovsdb.Row{"name": w.name, "interfaces": ovsop.Refs("iface_" + suffix), "external_ids": ovsop.Map(w.ids())}))
	return "port_" + suffix
}

// columns returns the Interface columns that w sets and that differ in have.
func (w wantPort) columns(have *iface) ovsdb.Row {
	row := ovsdb.Row{}
	if have.Type != w.ifaceType {
		row["type"] = w.ifaceType
	}
	if w.mac != "" && !is(have.MAC, w.mac) {
		row["mac"] = w.mac
	}
	if w.mtu != 0 && !is(have.MTURequest, w.mtu) {
		row["mtu_request"] = w.mtu
	}
	if w.options != nil && !maps.Equal(have.Options, w.options) {
		row["options"] = ovsop.Map(w.options)
	}
	if w.ofport != 0 && !is(have.OFPortRequest, w.ofport) {
		row["ofport_request"] = w.ofport
	}
	return row
}

func is[T comparable](column *T, value T) bool { return column != nil && *column == value }

func (p *plan) updatePort(h portIface, w wantPort) {
	if row := w.columns(h.iface); len(row) > 0 {
		p.update("Interface", h.iface.UUID, row)
		p.record("%s %s: %s set", w.what, w.name, strings.Join(slices.Sorted(maps.Keys(row)), ", "))
	}
	if w.pod != nil && h.record.matches(*w.pod) {
		return
	}
	if ids := w.ids(); !maps.Equal(ourIDs(h.ExternalIDs), ids) {
		p.setIDs("Port", h.port.UUID, h.ExternalIDs, ids)
		p.record("%s %s: record set", w.what, w.name)
	}
}

// prune plans the removal of Fairlead's ports that d does not have, and of those in names.
func prune(s snapshot, d Desired, names []string) plan {
	var p plan
	b, ok := s.bridges[d.Bridge]
	if !ok {
		return p
	}
	gone := p.retire(s, b, d, names)
	slices.Sort(p.changes)
	retired := len(p.ops)
	if len(gone) > 0 {
		p.removePorts(b, gone...)
	}
	if p.pruneZones(s, d); len(p.ops) > retired { // otherwise there is nothing for ovs-vswitchd to do
		p.seal(s.root)
	}
	return p
}

// retire plans to retire pod ports, and returns the UUIDs of the other ports to remove.
func (p *plan) retire(s snapshot, b bridge, d Desired, names []string) (gone []string) {
	wanted := map[string]bool{}
	for _, w := range d.ports() {
		wanted[w.name] = true
	}
	for name, h := range s.portsOf(b) {
		mark, named := h.ExternalIDs[markKey], slices.Contains(names, name)
		if wanted[name] || mark == markRetired || !named && !portIsOurs(h.port) {
			continue
		}
		if !named && mark == markPod {
			// Without its record it cannot be wanted. But as long as it has a device it may be a running pod's.
			if h.record.err != nil && !h.iface.gone() {
				continue
			}
		}
		if named || mark == markPod {
			p.setIDs("Port", h.port.UUID, h.ExternalIDs, map[string]string{markKey: markRetired})
			p.record("port %s retired", name)
			continue
		}
		gone = append(gone, h.port.UUID)
		p.record("port %s removed", name)
	}
	return gone
}

// removePorts plans to remove ports from a bridge: ovsdb-server deletes the rows, which nothing else refers to.
func (p *plan) removePorts(b bridge, uuids ...string) {
	p.mutate("Bridge", b.UUID, ovsop.Delete("ports", ovsop.Refs(uuids...)))
}
