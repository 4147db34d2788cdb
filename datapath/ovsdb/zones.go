package ovsdb

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ovn-org/libovsdb/ovsdb"

	"github.com/fairlead-cni/fairlead/datapath/internal/ovsop"
)

// Zones are conntrack zones of the datapath, with their timeouts (ovs-vswitchd.conf.db(5), CT_Timeout_Policy).
type Zones struct {
	Numbers []uint16
	// Timeouts are in seconds, by names such as "tcp_time_wait". Those not set are the datapath's defaults.
	Timeouts map[string]int
	// Start identifies the start of ovs-vswitchd that must have them (vswitchd.StartID); empty if unknown.
	Start string
}

// policyStart is the key of a policy's external_ids with the start of ovs-vswitchd that has it.
const policyStart = recordPrefix + "start"

// updateZones plans the timeouts of zones. A zone whose timeouts are not Fairlead's keeps them.
//
// Open vSwitch 3.5.0 applies timeouts that are set on an existing zone, but not those that a zone has when ovs-vswitchd
// first sees it, also at its start. So a zone is created without, and gets them when ovs-vswitchd has applied it; after
// each start they are removed first. With the last bridge of a datapath ovs-vswitchd forgets its zones: they are
// removed, before the bridge is added.
func (p *plan) updateZones(s snapshot, d Desired, present bool) {
	kind := datapathType(d.DatapathType)
	uuid, there := s.root.Datapaths[kind]
	dp := s.datapaths[uuid]
	if !present {
		p.removeZones(dp, s.ourZones(dp))
		return
	}
	added, waiting := ovsdb.OvsMap{GoMap: map[any]any{}}, map[int]ctZone{}
	for _, n := range d.Zones.Numbers {
		number := int(n)
		zone, ok := s.zones[dp.CTZones[number]]
		switch {
		case ok && (zone.ExternalIDs[markKey] != markZone || s.keeps(zone, d.Zones)):
		case ok && zone.TimeoutPolicy != nil:
			p.record("timeouts of conntrack zone %d removed, to be set again", number)
			p.update("CT_Zone", zone.UUID, ovsdb.Row{"timeout_policy": ovsop.Refs()})
		case s.pending():
		case ok:
			waiting[number] = zone
		default:
			name := fmt.Sprintf("zone_%d", number)
			p.record("conntrack zone %d added", number)
			p.ops = append(p.ops, ovsop.Insert("CT_Zone", name,
				ovsdb.Row{"external_ids": ovsop.Map(map[string]string{markKey: markZone})}))
			added.GoMap[number] = ovsdb.UUID{GoUUID: name}
		}
	}
	p.setTimeouts(waiting, s.policyOf(dp, d.Zones), d.Zones)
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

// setTimeouts plans to set the policy of zones, a new one if there is none.
func (p *plan) setTimeouts(zones map[int]ctZone, policy string, want Zones) {
	if len(zones) > 0 && policy == "" {
		policy = "timeouts"
		ids := map[string]string{markKey: markZone}
		if want.Start != "" {
			ids[policyStart] = want.Start
		}
		p.ops = append(p.ops, ovsop.Insert("CT_Timeout_Policy", policy,
			ovsdb.Row{"timeouts": seconds(want.Timeouts), "external_ids": ovsop.Map(ids)}))
	}
	for _, number := range slices.Sorted(maps.Keys(zones)) {
		p.record("timeouts of conntrack zone %d set", number)
		p.update("CT_Zone", zones[number].UUID, ovsdb.Row{"timeout_policy": ovsop.Refs(policy)})
	}
}

// pruneZones plans to remove the timeouts of Fairlead's zones that d does not have.
func (p *plan) pruneZones(s snapshot, d Desired) {
	dp := s.datapaths[s.root.Datapaths[datapathType(d.DatapathType)]]
	p.removeZones(dp, slices.DeleteFunc(s.ourZones(dp), func(number int) bool {
		return slices.Contains(d.Zones.Numbers, uint16(number))
	}))
}

// removeZones plans to remove zones from a datapath: ovsdb-server deletes their rows, which nothing else refers to.
func (p *plan) removeZones(dp datapath, numbers []int) {
	var keys ovsdb.OvsSet
	for _, number := range numbers {
		keys.GoSet = append(keys.GoSet, number)
		p.record("timeouts of conntrack zone %d removed", number)
	}
	if len(numbers) > 0 {
		p.mutate("Datapath", dp.UUID, ovsop.Delete("ct_zones", keys))
	}
}

// ourZones returns the numbers of the zones with Fairlead's mark, sorted.
func (s snapshot) ourZones(dp datapath) []int {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(dp.CTZones)), func(number int) bool {
		return s.zones[dp.CTZones[number]].ExternalIDs[markKey] != markZone
	})
}

// policyOf returns the policy of a zone of Fairlead's that is as wanted, or empty.
func (s snapshot) policyOf(dp datapath, want Zones) string {
	for _, number := range s.ourZones(dp) {
		if zone := s.zones[dp.CTZones[number]]; s.keeps(zone, want) {
			return *zone.TimeoutPolicy
		}
	}
	return ""
}

// keeps reports whether a zone has the wanted timeouts.
func (s snapshot) keeps(zone ctZone, want Zones) bool {
	if zone.TimeoutPolicy == nil {
		return false
	}
	policy := s.policies[*zone.TimeoutPolicy]
	return maps.Equal(policy.Timeouts, want.Timeouts) && (want.Start == "" || policy.ExternalIDs[policyStart] == want.Start)
}

func seconds(timeouts map[string]int) ovsdb.OvsMap {
	m := ovsdb.OvsMap{GoMap: map[any]any{}}
	for name, n := range timeouts {
		m.GoMap[name] = n
	}
	return m
}
