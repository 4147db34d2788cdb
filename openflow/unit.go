package openflow

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/openflow/internal/nx"
	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

// Unit is what the switch has for one port of a Service: flows of priority UnitPriority in table Service and flows in
// table Endpoint, and a group if it has buckets; or for one item that policies need. There may be tens of thousands of
// Units, so each is changed separately.
type Unit struct {
	Flows   []Flow
	Buckets []Bucket
	Hash    Hash
	// Build, unless nil, returns the whole Unit, the same each time: it is called when needed, and the result is not kept.
	Build func() Unit
}

// unitFunc returns a Unit that is not stored; nil: none.
type unitFunc func() Unit

func (m unitFunc) build() (u Unit) {
	if m != nil {
		u = m()
	}
	return u
}

// Bucket is one choice of a group, and Hash says how it chooses.
type (
	Bucket = nx.Bucket
	Hash   = nx.Hash
)

// BucketAction is what a bucket does: a Conntrack that looks the packet up again.
func BucketAction(c Conntrack) nx.Conntrack { return nx.Conntrack(c) }

// MaxBuckets is the maximum number of buckets of a Unit.
const MaxBuckets = nx.MaxBuckets

// UnitPriority is the priority of flows in table Service that belong to Units. All others there are shared by all
// Services.
const UnitPriority = 200

func (f *Flow) ofService() bool {
	return (f.Table == TableService && f.Priority == UnitPriority || f.Table == TableEndpoint) && !f.Kind.OfPolicies()
}

func (f *Flow) ofPolicy() bool { return f.Kind.OfPolicies() }

// units are the wanted Units and those that the switch has confirmed, by group ID.
type units struct {
	owns func(*Flow) bool
	// known: until SetUnits has said which Units are wanted, those on the switch stay unchanged, and so do all other flows
	// of Services.
	known bool
	want  map[uint32]unitFunc
	sent  bool                // the switch has confirmed what is wanted, except dirty
	dirty map[uint32]unitFunc // what differs, as the switch has it
	// listed is what the switch has, until it is compared, without the Units that are wanted and not in differ.
	listed       map[Key]*knownFlow
	listedGroups []nx.Listed
	differ       map[uint32]struct{} // Units that differ between what is wanted and the switch
	diffs        uint64              // how often listed was compared
	gone         map[Translation]struct{}
}

// Translation is the translation of packets to a Service: conntrack sends them to an endpoint.
type Translation struct{ Service, Endpoint netip.AddrPort }

// Gone returns the UDP translations that the switch has stopped making since the last call of Gone, including those
// that were gone when it was listed. Their connections still exist.
func (s *Switch) Gone() []Translation {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	out := slices.Collect(maps.Keys(s.units.gone))
	s.units.gone = nil
	return out
}

// udp adds the translations of one flow.
func udp(f *Flow, buckets []Bucket, to map[Translation]struct{}) {
	if f.Match.Protocol == protoUDP+1 {
		translations(f, buckets, to)
	}
}

func (m unitFunc) udp(to map[Translation]struct{}) {
	u := m.build()
	for i := range u.Flows {
		udp(&u.Flows[i], u.Buckets, to)
	}
}

// recordGone records which translations are gone, before the record of what was sent is discarded.
func (u *units) recordGone() {
	before, now := map[Translation]struct{}{}, map[Translation]struct{}{}
	groups := map[uint32][]Bucket{}
	for _, g := range u.listedGroups {
		groups[g.ID] = g.Buckets
	}
	for _, h := range u.listed {
		id := h.flow.group()
		if u.asWanted(id) {
			groups[id] = u.want[id].build().Buckets
		}
		udp(h.flow, groups[id], before)
	}
	for id, was := range u.dirty {
		was.udp(before)
		u.want[id].udp(now)
	}
	if !u.sent && len(before) > 0 {
		for _, unit := range u.want {
			unit.udp(now)
		}
	}
	if u.gone == nil {
		u.gone = map[Translation]struct{}{}
	}
	maps.DeleteFunc(before, func(t Translation, _ struct{}) bool { _, still := now[t]; return still })
	maps.Copy(u.gone, before)
}

func newUnits(owns func(*Flow) bool) units {
	return units{owns: owns, want: map[uint32]unitFunc{}, dirty: map[uint32]unitFunc{}}
}

// SetPolicies is SetUnits for policies, whose Units have no buckets and their own IDs.
func (s *Switch) SetPolicies(u map[uint32]Unit, all bool) {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	s.policies.set(u, all)
}

// PodFlows returns the flows of pods and policies that the switch had when last listed, or was sent since; it lists
// if necessary.
func (s *Switch) PodFlows(ctx context.Context) (out []Flow, err error) {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	if err := s.refresh(ctx); err != nil {
		s.stale.Store(true)
		return nil, err
	}
	for _, h := range s.confirmed.flows {
		if h.flow.Kind == KindPod {
			out = append(out, *h.flow)
		}
	}
	return s.policies.appendFlows(out), nil
}

// appendFlows appends the flows that the switch has.
func (u *units) appendFlows(out []Flow) []Flow {
	for _, h := range u.listed {
		out = append(out, *h.flow)
	}
	for id, unit := range u.want {
		if u.asWanted(id) {
			out = append(out, unit.build().Flows...)
		}
	}
	for _, was := range u.dirty {
		out = append(out, was.build().Flows...)
	}
	return out
}

// asWanted reports whether the switch has the Unit with that number as it is wanted.
func (u *units) asWanted(id uint32) bool {
	_, dirty := u.dirty[id]
	_, differs := u.differ[id]
	return !dirty && !differs && (u.sent || u.listed != nil)
}

// SetUnits sets the wanted Units: all, or those that differ from before; one without flows is removed. The next Sync or
// SyncUnits applies it. The caller must not change them afterwards.
func (s *Switch) SetUnits(u map[uint32]Unit, all bool) {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	s.units.set(u, all)
}

func (u *units) set(changed map[uint32]Unit, all bool) {
	if all {
		for id := range u.want {
			u.put(id, Unit{})
		}
		u.known = true
	}
	for id, unit := range changed {
		u.put(id, unit)
	}
}

func (u *units) put(id uint32, unit Unit) {
	if _, already := u.dirty[id]; u.sent && !already {
		u.dirty[id] = u.want[id]
	}
	if u.listed != nil {
		u.markDiffering(id, nil)
	}
	if delete(u.want, id); unit.Build != nil {
		u.want[id] = unit.Build
	} else if len(unit.Flows) > 0 {
		u.want[id] = func() Unit { return unit }
	}
}

// SyncUnits makes the switch have the wanted Units, and ignores everything else. After an error the next Sync first
// lists what the switch has; until then SyncUnits returns an error.
func (s *Switch) SyncUnits(ctx context.Context) (Changes, error) {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	if err := s.conn.Reason(); err != nil {
		return Changes{}, err
	}
	if s.stale.Load() {
		return Changes{}, errStale
	}
	todo, count, err := s.diffUnits()
	if err != nil || len(todo) == 0 {
		return Changes{}, err
	}
	if err := s.commit(ctx, todo); err != nil {
		s.stale.Store(true)
		return Changes{}, fmt.Errorf("syncing Services and policies: %w", err)
	}
	s.confirmUnits()
	s.report(todo, count)
	return count, nil
}

// keptKind returns the kind of flows that stay even if they are not wanted: while the Services are unknown, so is what
// connections to them need.
func (u *units) keptKind() Kind {
	if u.known {
		return 0
	}
	return KindService
}

// noneWanted reports whether no Units are wanted.
func (u *units) noneWanted() bool { return u.known && len(u.want) == 0 }

// diffUnits returns what turns the switch's Units into the wanted ones.
func (s *Switch) diffUnits() ([]change, Changes, error) {
	services, count, err := s.units.diff()
	if err != nil {
		return nil, Changes{}, err
	}
	policies, more, err := s.policies.diff()
	return slices.Concat(services, policies), count.plus(more), err
}

func (s *Switch) confirmUnits() {
	s.units.confirm()
	s.policies.confirm()
}

// diff returns what turns the switch's Units into the wanted ones: groups that flows may need, flows, then the deletion
// of groups, which would delete flows that still lead there.
func (u *units) diff() ([]change, Changes, error) {
	if !u.known {
		return nil, Changes{}, nil
	}
	var d unitChanges
	if u.diffs++; !u.sent {
		d.againstListed(u)
	} else {
		for _, id := range slices.Sorted(maps.Keys(u.dirty)) {
			d.replace(id, u.dirty[id].build(), u.want[id].build())
		}
		d.keepMoved()
	}
	for _, c := range d.flows {
		if !c.delete && !u.owns(c.flow) {
			return nil, Changes{}, fmt.Errorf("a flow of a Service or policy outside its tables: %s", c.flow)
		}
	}
	return slices.Concat(d.groups, d.flows, d.deletions), d.count, nil
}

// unitChanges are collected by diff.
type unitChanges struct {
	groups, flows, deletions []change
	count                    Changes
}

func (d *unitChanges) replace(id uint32, before, now Unit) {
	d.group(id, before.group(id), now.group(id), len(before.Buckets) > 0)
	old := map[Key]*Flow{}
	for i := range before.Flows {
		old[before.Flows[i].Key()] = &before.Flows[i]
	}
	for i := range now.Flows {
		f := &now.Flows[i]
		was, had := old[f.Key()]
		delete(old, f.Key())
		switch {
		case !had:
			d.count.Added++
		case was.sameAs(f):
			continue
		default:
			d.count.Modified++
		}
		d.flows = append(d.flows, change{flow: f})
	}
	for _, f := range old {
		d.count.Deleted++
		d.flows = append(d.flows, change{flow: f, delete: true})
	}
}

// keepMoved leaves out the deletion of flows that another Unit has now: by number it might come last.
func (d *unitChanges) keepMoved() {
	put := map[Key]bool{}
	for _, c := range d.flows {
		if !c.delete {
			put[c.flow.Key()] = true
		}
	}
	all := len(d.flows)
	d.flows = slices.DeleteFunc(d.flows, func(c change) bool { return c.delete && put[c.flow.Key()] })
	d.count.Deleted -= all - len(d.flows)
}

// group compares groups; before is valid only if there was one.
func (d *unitChanges) group(id uint32, before, now nx.Group, had bool) {
	switch has := len(now.Buckets) > 0; {
	case had && !has:
		d.count.Deleted++
		d.deletions = append(d.deletions, change{group: &nx.Group{ID: id}, delete: true})
	case has && !had:
		d.count.Added++
		d.groups = append(d.groups, change{group: new(now)})
	case has && !before.Equal(now):
		d.count.Modified++
		d.groups = append(d.groups, change{group: new(now), modify: true})
	}
}

// againstListed compares everything wanted with what the switch has listed.
func (d *unitChanges) againstListed(u *units) {
	groups := map[uint32]nx.Listed{}
	for _, g := range u.listedGroups {
		groups[g.ID] = g
	}
	d.flows = make([]change, 0, len(u.differ)) // usually the minimum
	for _, id := range slices.Sorted(maps.Keys(u.differ)) {
		unit := u.want[id].build()
		if len(unit.Flows) == 0 {
			continue
		}
		g, had := groups[id]
		delete(groups, id)
		if had && !g.Known {
			g.Group = nx.Group{}
		}
		d.group(id, g.Group, unit.group(id), had)
		for i := range unit.Flows {
			f := &unit.Flows[i]
			h := u.listed[f.Key()]
			if h == nil {
				d.count.Added++
			} else if h.wanted = u.diffs; h.altered || !h.flow.sameAs(f) {
				d.count.Modified++
			} else {
				continue
			}
			d.flows = append(d.flows, change{flow: f})
		}
	}
	for _, h := range u.listed {
		if h.wanted != u.diffs {
			d.count.Deleted++
			d.flows = append(d.flows, change{flow: h.flow, delete: true})
		}
	}
	for id := range groups {
		d.group(id, nx.Group{}, nx.Group{}, true)
	}
	slices.SortFunc(d.deletions, func(a, b change) int { return cmp.Compare(a.group.ID, b.group.ID) })
}

// confirm records that the switch has all wanted Units.
func (u *units) confirm() {
	if !u.known {
		return
	}
	u.recordGone()
	u.sent, u.dirty = true, map[uint32]unitFunc{} // a new one: the old may be large
	u.listed, u.listedGroups, u.differ = nil, nil, nil
}

func (u Unit) group(id uint32) nx.Group {
	return nx.Group{ID: id, Hash: u.Hash, Buckets: u.Buckets}
}

// eachGroup calls read for each part of the list of groups.
func (s *Switch) eachGroup(ctx context.Context, read func(ofconn.Message) error) error {
	xid := s.conn.Reserve(2)
	return s.each(ctx, xid, nx.ListGroups(xid), read)
}

// groupMod encodes a change of a group.
func (c *change) groupMod(b []byte, xid uint32) []byte {
	switch {
	case c.delete:
		return nx.DeleteGroup(b, xid, c.group.ID)
	case c.modify:
		return c.group.Modify(b, xid)
	}
	return c.group.Add(b, xid)
}

// FlushUDP deletes from conntrack the connections of a zone to a Service's endpoint.
func (s *Switch) FlushUDP(ctx context.Context, zone uint16, service, endpoint netip.AddrPort) error {
	return s.flush(ctx, func(xid uint32) []byte { return nx.Flush(xid, zone, protoUDP, service, endpoint) })
}

// Flush deletes a connection of a zone from conntrack, by the addresses of its first packet.
func (s *Switch) Flush(ctx context.Context, zone uint16, protocol uint8, from, to netip.AddrPort) error {
	return s.flush(ctx, func(xid uint32) []byte { return nx.FlushOne(xid, zone, protocol, from, to) })
}

func (s *Switch) flush(ctx context.Context, message func(xid uint32) []byte) error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	if err := s.send(ctx, message); err != nil {
		return fmt.Errorf("deleting connections from conntrack: %w", err)
	}
	return nil
}
