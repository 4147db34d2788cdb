package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
)

// records are the attachments on record in OVSDB, by host end.
type records struct {
	pods map[string]ovsdb.PodPort
	// broken are host ends whose record can't be read. Somebody may be
	// running behind them.
	broken map[string]string // host end -> what is wrong
}

func (p *pods) records() (records, error) {
	obs, err := p.loop.db.Observe(p.loop.cfg.OVSBridge)
	if err != nil {
		return records{}, err
	}
	r := records{pods: map[string]ovsdb.PodPort{}, broken: map[string]string{}}
	for _, a := range obs.Pods {
		r.pods[a.HostIf] = a
	}
	for _, b := range obs.Broken {
		r.broken[b.Name] = b.Reason
	}
	for _, host := range p.loop.seen.hosts() {
		if _, there := r.pods[host]; !there && r.broken[host] == "" {
			r.broken[host] = "somebody removed it from OVSDB, and it is not written again yet"
		}
	}
	return r, nil
}

// allocate leases addresses that no attachment on record has. Where one has
// them its lease was lost ("rm -r", another disk): the leases are restored, and
// others taken.
func (p *pods) allocate(r cniserver.Request, s *state) ([]netip.Prefix, error) {
	for range 2 {
		addrs, err := p.leases.Allocate(r.ContainerID, r.IfName, s.podCIDRs)
		if err != nil {
			return nil, cniserver.NoAddress(err)
		}
		known, err := p.records()
		if err != nil {
			return nil, cniserver.TryAgain(err.Error())
		}
		if known.holder(addrs, link.HostName(r.ContainerID, r.IfName), p.bootID) == "" {
			return addrs, nil
		}
		if err := errors.Join(p.leases.Release(r.ContainerID, r.IfName), p.restoreLeases()); err != nil {
			return nil, cniserver.TryAgain(fmt.Sprintf("restoring leases that were lost: %v", err))
		}
	}
	return nil, cniserver.TryAgain("leases of running pods were lost and are not all restored yet")
}

// holder is the host end of another attachment of this boot than host's that
// has one of addrs, or empty.
func (r records) holder(addrs []netip.Prefix, host, bootID string) string {
	for other, a := range r.pods {
		if other != host && a.BootID == bootID && slices.ContainsFunc(a.Addrs, func(p netip.Prefix) bool {
			return slices.ContainsFunc(addrs, func(q netip.Prefix) bool { return p.Addr() == q.Addr() })
		}) {
			return other
		}
	}
	return ""
}
