package ovsdb

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ovn-org/libovsdb/ovsdb"

	"github.com/fairlead-cni/fairlead/datapath/internal/ovsop"
)

// Zones are conntrack zones of the datapath, and how long connections stay in them (ovs-vswitchd.conf.db(5),
// CT_Timeout_Policy).
type Zones struct {
	Numbers []uint16
	// Timeouts are in seconds, by names such as "tcp_time_wait". What has none is the datapath's own choice.
	Timeouts map[string]int
}

// updateZones plans the timeouts of zones. A zone that somebody else has given timeouts keeps them.
//
// With the last bridge of a datapath ovs-vswitchd forgets the timeouts of its zones, and it is told again only of zones
// that are new to it: for a bridge that is added ours go first, and are there again when it has taken that. Until then
// it might see both at once, and nothing new.
func (p *plan) updateZones(s snapshot, d Desired, present bool) {
	kind := datapathType(d.DatapathType)
	uuid, there := s.root.Datapaths[kind]
	dp := s.datapaths[uuid]
	if !present {
		p.removeZones(dp, s.ourZones(dp))
		return
	}
	policy := s.policyOf(dp, d.Zones.Timeouts)
	added := ovsdb.OvsMap{GoMap: map[any]any{}}
	for _, number := range d.Zones.Numbers {
		zone, ok := s.zones[dp.CTZones[int(number)]]
		if !ok && s.pending() || ok && (zone.ExternalIDs[markKey] != markZone || s.keeps(zone, d.Zones.Timeouts)) {
			continue
		}
		if policy == "" {
			policy = "timeouts"
			p.ops = append(p.ops, ovsop.Insert("CT_Timeout_Policy", policy,
				ovsdb.Row{"timeouts": seconds(d.Zones.Timeouts), "external_ids": ovsop.Map(map[string]string{markKey: markZone})}))
		}
		p.did("timeouts of conntrack zone %d set", number)
		if ok {
			p.update("CT_Zone", zone.UUID, ovsdb.Row{"timeout_policy": ovsop.Refs(policy)})
			continue
		}
		name := fmt.Sprintf("zone_%d", number)
		p.ops = append(p.ops, ovsop.Insert("CT_Zone", name, ovsdb.Row{"timeout_policy": ovsop.Refs(policy),
			"external_ids": ovsop.Map(map[string]string{markKey: markZone})}))
		added.GoMap[int(number)] = ovsdb.UUID{GoUUID: name}
	}
	switch {
	case len(added.GoMap) == 0:
	case there:
		p.mutate("Datapath", uuid, ovsop.Add("ct_zones", added))
	default:
		p.ops = append(p.ops, ovsop.Insert("Datapath", "datapath",
			ovsdb.Row{"ct_zones": added, "external_ids": ovsop.Map(map[string]string{markKey: markZone})}))
		p.mutate("Open_vSwitch", s.root.UUID, ovsop.Add("datapaths",
			ovsdb.OvsMap{GoMap: map[any]any{kind: ovsdb.UUID{GoUUID: "datapath"}}}))
	}
}

// pruneZones plans that zones of ours that d does not have keep no timeouts.
func (p *plan) pruneZones(s snapshot, d Desired) {
	dp := s.datapaths[s.root.Datapaths[datapathType(d.DatapathType)]]
	p.removeZones(dp, slices.DeleteFunc(s.ourZones(dp), func(number int) bool {
		return slices.Contains(d.Zones.Numbers, uint16(number))
	}))
}

// removeZones plans to take zones out of a datapath: ovsdb-server removes their rows, which nothing else refers to.
func (p *plan) removeZones(dp datapath, numbers []int) {
	var keys ovsdb.OvsSet
	for _, number := range numbers {
		keys.GoSet = append(keys.GoSet, number)
		p.did("timeouts of conntrack zone %d removed", number)
	}
	if len(numbers) > 0 {
		p.mutate("Datapath", dp.UUID, ovsop.Delete("ct_zones", keys))
	}
}

// ourZones are the numbers of the zones with our mark, in order.
func (s snapshot) ourZones(dp datapath) []int {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(dp.CTZones)), func(number int) bool {
		return s.zones[dp.CTZones[number]].ExternalIDs[markKey] != markZone
	})
}

// policyOf is the policy of a zone of ours with these timeouts, or empty.
func (s snapshot) policyOf(dp datapath, timeouts map[string]int) string {
	for _, number := range s.ourZones(dp) {
		if zone := s.zones[dp.CTZones[number]]; s.keeps(zone, timeouts) {
			return *zone.TimeoutPolicy
		}
	}
	return ""
}

// keeps reports whether a zone's connections have these timeouts.
func (s snapshot) keeps(zone ctZone, timeouts map[string]int) bool {
	return zone.TimeoutPolicy != nil && maps.Equal(s.policies[*zone.TimeoutPolicy].Timeouts, timeouts)
}

func seconds(timeouts map[string]int) ovsdb.OvsMap {
	m := ovsdb.OvsMap{GoMap: map[any]any{}}
	for name, n := range timeouts {
		m.GoMap[name] = n
	}
	return m
}
