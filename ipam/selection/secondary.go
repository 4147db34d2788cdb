package selection

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/netaddr"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// Secondary returns the pools that a CNI configuration names for interfaces of another plugin, in their order, if they
// may allocate addresses there and have those wanted, which have a full-length mask or the mask that the pool must
// have. A pool may be of an isolated network. Known.IPPools need not be all of the cluster; Devices are not read. The
// error says what to change in the configuration or in a pool.
func Secondary(names []string, wanted []netip.Prefix, k Known) ([]pool.Pool, error) {
	k.Others.Pools = valid(k.IPPools)
	var out []pool.Pool
	for _, name := range names {
		p, err := k.secondary(name)
		if err != nil {
			return nil, fmt.Errorf("the network configuration asks for IPPool %s: %w", name, err)
		}
		out = append(out, p)
	}
	for _, w := range wanted {
		if err := has(out, w); err != nil {
			return nil, fmt.Errorf("the pod asks for the address %s of the network: %w. Ask for another address", w.Addr(), err)
		}
	}
	return out, nil
}

func (k Known) secondary(name string) (pool.Pool, error) {
	object, found := k.IPPools[name]
	if !found {
		return pool.Pool{}, errors.New("there is no such IPPool. Create it, or correct ipam.ippools")
	}
	p, err := valued(object)
	if err != nil {
		return pool.Pool{}, err
	}
	for _, r := range p.Ranges {
		if r.VLAN != 0 {
			return pool.Pool{}, fmt.Errorf("its range %s is in VLAN %d, but another plugin creates the interface and does not get the VLAN. Put the VLAN into the plugin's own configuration (macvlan: master eth0.%[2]d; bridge: vlan), and "+
				"name a pool without vlan", r.Span, r.VLAN)
		}
	}
	return p, k.yields(p)
}

// has says why none of the pools can allocate an address with the requested mask.
func has(pools []pool.Pool, want netip.Prefix) error {
	var why []string
	for _, p := range pools {
		if (p.Family == 4) != want.Addr().Is4() {
			continue
		}
		if err := p.Check(want.Addr()); err != nil {
			why = append(why, err.Error())
			continue
		}
		if r, _ := p.RangeOf(want.Addr()); want.Bits() != want.Addr().BitLen() && want.Bits() != r.Bits {
			return fmt.Errorf("it is requested with the mask /%d, but pool %s has /%d", want.Bits(), p.Name, r.Bits)
		}
		return nil
	}
	if len(why) == 0 {
		return fmt.Errorf("no pool of ipam.ippools is IPv%d", netaddr.Family(want.Addr()))
	}
	return errors.New(strings.Join(why, ", and "))
}
