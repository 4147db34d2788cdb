package selection

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/internal/netaddr"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// Known is the state of the cluster and of this node.
type Known struct {
	// IPPools are all of the cluster, by name.
	IPPools map[string]api.IPPool
	// Others are what pools may overlap with. Its Pools are not read.
	Others pool.Others
	// Devices are VLAN sub-interfaces of the NIC that carries pods' frames, by VLAN: the node itself is in these VLANs.
	Devices map[uint16]string
}

// Choose returns the pools that w asks for, in their order, each fit to allocate addresses. The error says what to
// change in the Pod, in the Namespace or in a pool.
func (w PoolRequest) Choose(k Known) ([]pool.Pool, error) {
	k.Others.Pools = valid(k.IPPools)
	var out []pool.Pool
	for _, name := range w.Pools {
		p, err := k.read(name)
		if err != nil {
			return nil, fmt.Errorf("%s asks for IPPool %s: %w", w.From, name, err)
		}
		out = append(out, p)
	}
	if err := w.checkVLANs(out); err != nil {
		return nil, err
	}
	return out, w.checkPodIPs(out)
}

// valid are the pools that can be parsed: others allocate nothing, so overlaps with them do not count.
func valid(all map[string]api.IPPool) []pool.Pool {
	var out []pool.Pool
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if p, err := pool.Read(all[name]); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// read returns the named pool if pods of this node may get addresses of it.
func (k Known) read(name string) (pool.Pool, error) {
	object, found := k.IPPools[name]
	if !found {
		return pool.Pool{}, fmt.Errorf("there is no such IPPool. %s. Create it, or correct the annotation %s",
			someNames(k.IPPools), api.AnnotationPools)
	}
	p, err := valued(object)
	if err != nil {
		return pool.Pool{}, err
	}
	if p.Scope != "" {
		return pool.Pool{}, fmt.Errorf("its addresses are those of the isolated network %s (annotation %s of the pool), "+
			"but a pod's own address must be unique in the cluster. Name a pool without that annotation",
			p.Scope, api.AnnotationNetwork)
	}
	if err := k.yields(p); err != nil {
		return pool.Pool{}, err
	}
	for _, r := range p.Ranges {
		if device, taken := k.Devices[r.VLAN]; taken && r.VLAN != 0 {
			return pool.Pool{}, fmt.Errorf("it is in VLAN %d, which the node itself uses on %s: pods and node cannot share it. Remove %s from the node, or keep such pods off the node", r.VLAN, device, device)
		}
	}
	return p, nil
}

// valued is the pool of an object that exists, is valid and is not being deleted.
func valued(object api.IPPool) (pool.Pool, error) {
	if object.DeletionTimestamp != nil {
		return pool.Pool{}, errors.New("it is being deleted. Name another pool")
	}
	p, err := pool.Read(object)
	if err != nil {
		return pool.Pool{}, fmt.Errorf("it is invalid: %w", err)
	}
	return p, nil
}

// yields returns an error that names what p must leave shared addresses to; nil if it need not.
func (k Known) yields(p pool.Pool) error {
	for _, o := range p.Overlaps(k.Others) {
		if o.Yields {
			return fmt.Errorf("it does not allocate addresses: %s", o)
		}
	}
	return nil
}

// someNames lists the existing pools, so that a misspelt name is noticed.
func someNames(pools map[string]api.IPPool) string {
	const most = 5
	names := slices.Sorted(maps.Keys(pools))
	switch {
	case len(names) == 0:
		return "There are no IPPools"
	case len(names) > most:
		return fmt.Sprintf("There are %s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return "There are " + strings.Join(names, ", ")
}

// checkVLANs rejects pools of two families that have no VLAN in common.
func (w PoolRequest) checkVLANs(pools []pool.Pool) error {
	vlans := map[int][]uint16{}
	first := map[int]string{}
	for _, p := range pools {
		if first[p.Family] == "" {
			first[p.Family] = p.Name
		}
		for _, r := range p.Ranges {
			vlans[p.Family] = append(vlans[p.Family], r.VLAN)
		}
	}
	if len(first) < 2 || slices.ContainsFunc(vlans[4], func(v uint16) bool { return slices.Contains(vlans[6], v) }) {
		return nil
	}
	return fmt.Errorf("%s asks for IPPool %s, which is in VLAN %s, and for IPPool %s, which is in VLAN %s: a pod is in one VLAN. Name two pools of the same spec vlan", w.From, first[4], list(vlans[4]), first[6], list(vlans[6]))
}

func list(vlans []uint16) string {
	slices.Sort(vlans)
	var out []string
	for _, v := range slices.Compact(vlans) {
		out = append(out, fmt.Sprint(v))
	}
	return strings.Join(out, " and ")
}

// checkPodIPs rejects an address that no pool of its family has.
func (w PoolRequest) checkPodIPs(pools []pool.Pool) error {
	for _, a := range w.PodIPs {
		if err := w.checkPodIP(a, pools); err != nil {
			return fmt.Errorf("%s asks for %s=%s: %w. Choose another address, or another pool",
				w.IPsFrom, api.AnnotationPodIPs, a, err)
		}
	}
	return nil
}

func (w PoolRequest) checkPodIP(a netip.Addr, pools []pool.Pool) error {
	var errs []string
	for _, p := range pools {
		if (p.Family == 4) != a.Is4() {
			continue
		}
		err := p.Check(a)
		if err == nil {
			return nil
		}
		errs = append(errs, err.Error())
	}
	if len(errs) == 0 {
		return fmt.Errorf("it is IPv%d, but no IPv%d pool is among %s, which %s names",
			netaddr.Family(a), netaddr.Family(a), strings.Join(w.Pools, ", "), w.From)
	}
	return errors.New(strings.Join(errs, ", and "))
}
