package cniserver

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// ipamConf is the key ipam of a network configuration where Fairlead is the IPAM plugin:
// Antrea's keys, which are those of the reference plugin static, and ippools.
type ipamConf struct {
	pools []string
	// static are passed through without allocation.
	static []Address
	// wanted are addresses of pools.
	wanted []netip.Prefix
	routes []*types.Route
	dns    types.DNS
}

// ipamKeys is the key ipam as written.
type ipamKeys struct {
	Type      string     `json:"type"`
	Pools     []string   `json:"ippools"`
	Addresses []addrKeys `json:"addresses"`
	Routes    []struct {
		Dst      string `json:"dst"`
		GW       string `json:"gw"`
		MTU      int    `json:"mtu"`
		AdvMSS   int    `json:"advmss"`
		Priority int    `json:"priority"`
		Table    *int   `json:"table"`
		Scope    *int   `json:"scope"`
	} `json:"routes"`
	DNS struct {
		Nameservers []string `json:"nameservers"`
		Domain      string   `json:"domain"`
		Search      []string `json:"search"`
		Options     []string `json:"options"`
	} `json:"dns"`
}

type addrKeys struct {
	Address string `json:"address"`
	Gateway string `json:"gateway"`
}

func badIPAM(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, "network configuration, "+fmt.Sprintf(format, args...), "")
}

// ipam reads the key ipam, and the ways in which a runtime can request addresses: runtimeConfig.ips, args.cni.ips and
// IP= in CNI_ARGS, which args was parsed from.
func (c netConf) ipam(args ipamArgs) (ipamConf, error) {
	var out ipamConf
	var k ipamKeys
	strict, err := kjson.UnmarshalStrict(c["ipam"], &k)
	if err != nil {
		return out, decodingError(`network configuration, key "ipam"`, err)
	}
	if len(strict) > 0 {
		return out, badIPAM("key \"ipam\": %v. The keys are type, ippools, addresses (address, gateway), routes (dst, gw, mtu, "+
			"advmss, priority, table, scope) and dns (nameservers, domain, search, options), each once. Correct or remove it", strict[0])
	}
	if out.pools = k.Pools; len(k.Pools) > 0 {
		err = checkPoolNames(k.Pools)
	}
	if err == nil {
		err = c.addresses(&out, k.Addresses, args)
	}
	if err == nil {
		out.routes, err = k.routes()
	}
	if err == nil {
		out.dns, err = k.dns()
	}
	if err == nil && len(out.pools) == 0 && len(out.static) == 0 {
		err = badIPAM("key \"ipam\": neither ippools nor addresses: name an IPPool in ipam.ippools, or an address in " +
			"ipam.addresses")
	}
	return out, err
}

func checkPoolNames(names []string) error {
	for i, name := range names {
		if name == "" || len(name) > 253 || strings.ContainsFunc(name, notInNames) {
			return badIPAM("ipam.ippools[%d]: %q is not a valid name of an IPPool", i, name)
		}
		if slices.Contains(names[:i], name) {
			return badIPAM("ipam.ippools names %s twice: remove one. A pool of a family is used when the previous one is full",
				name)
		}
	}
	return nil
}

// addresses sets the static ones and those requested of pools. Without pools it handles a runtime's request as the
// plugin static does.
func (c netConf) addresses(out *ipamConf, written []addrKeys, args ipamArgs) error {
	requested, where, err := c.requested()
	if err != nil {
		return err
	}
	if len(requested) == 0 {
		requested, where = listOf(args.IP), fromCNIArgs
		if err := args.checkGateways(); err != nil {
			return err
		}
	}
	if len(out.pools) > 0 {
		if out.wanted, err = readWanted(requested, where); err != nil {
			return err
		}
		out.static, err = readStatic(written, "ipam.addresses")
		return err
	}
	var wanted []addrKeys
	for _, text := range requested {
		wanted = append(wanted, addrKeys{text, args.gatewayOf(text)})
	}
	if len(requested) > 0 && where != fromCNIArgs { // replaces the addresses of the configuration
		out.static, err = readStatic(wanted, where)
		return err
	}
	if out.static, err = readStatic(written, "ipam.addresses"); err != nil {
		return err
	}
	more, err := readStatic(wanted, where)
	out.static = append(out.static, more...)
	return err
}

// fromCNIArgs is the name of CNI_ARGS' addresses in messages.
const fromCNIArgs = "IP= of CNI_ARGS"

// requested are the addresses that a runtime requests in the configuration, and where.
func (c netConf) requested() ([]string, string, error) {
	var fromRuntime struct {
		IPs []string `json:"ips"`
	}
	var fromArgs struct {
		CNI struct {
			IPs []string `json:"ips"`
		} `json:"cni"`
	}
	if err := c.get("runtimeConfig", &fromRuntime); err != nil {
		return nil, "", err
	}
	if err := c.get("args", &fromArgs); err != nil {
		return nil, "", err
	}
	if len(fromRuntime.IPs) > 0 {
		return fromRuntime.IPs, "runtimeConfig.ips", nil
	}
	return fromArgs.CNI.IPs, "args.cni.ips", nil
}

// readWanted parses addresses of pools that a runtime requests, with or without a mask.
func readWanted(texts []string, where string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if addr, aerr := netip.ParseAddr(text); err != nil && aerr == nil && addr.Zone() == "" {
			p, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil || !usable(p.Addr()) {
			return nil, badIPAM("%s: invalid address %q: want one such as 192.0.2.7 or 2001:db8::7/64", where, text)
		}
		if slices.ContainsFunc(out, func(q netip.Prefix) bool { return q.Addr().Is4() == p.Addr().Is4() }) {
			return nil, badIPAM("%s asks for a second address of one family, %s: pools provide one of each family. Remove one", where, text)
		}
		out = append(out, p)
	}
	return out, nil
}

// usable reports whether an interface can have the address.
func usable(a netip.Addr) bool {
	return !a.Is4In6() && (a.IsGlobalUnicast() || a.Is6() && a.IsLinkLocalUnicast())
}

func readStatic(written []addrKeys, where string) ([]Address, error) {
	var out []Address
	for i, w := range written {
		p, err := netip.ParsePrefix(w.Address)
		if err != nil || !usable(p.Addr()) {
			return nil, badIPAM("%s[%d]: invalid address %q: want an interface address with its mask, such as 192.0.2.7/24 or 2001:db8::7/64", where, i, w.Address)
		}
		a := Address{Prefix: p}
		if w.Gateway != "" {
			a.Gateway, err = netip.ParseAddr(w.Gateway)
			if err != nil || a.Gateway.Zone() != "" || !usable(a.Gateway) {
				return nil, badIPAM("%s[%d].gateway: %q is not a router's address", where, i, w.Gateway)
			}
			if a.Gateway.Is4() != p.Addr().Is4() {
				return nil, badIPAM("%s[%d]: %s and its gateway %s are of different families. Use a gateway of the address's family, or none", where, i, p, a.Gateway)
			}
		}
		if slices.ContainsFunc(out, func(b Address) bool { return b.Prefix.Addr() == p.Addr() }) {
			return nil, badIPAM("%s[%d]: duplicate address %s. Remove one", where, i, p.Addr())
		}
		out = append(out, a)
	}
	return out, nil
}

func (k ipamKeys) routes() ([]*types.Route, error) {
	var out []*types.Route
	for i, r := range k.Routes {
		dst, err := netip.ParsePrefix(r.Dst)
		if err != nil || dst.Addr().Is4In6() {
			return nil, badIPAM("ipam.routes[%d].dst: invalid destination %q: want one such as 0.0.0.0/0 or 2001:db8::/32", i, r.Dst)
		}
		// The plugin static prints dst with host bits as written.
		route := &types.Route{Dst: *netaddr.IPNet(dst), MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority, Table: r.Table,
			Scope: r.Scope}
		if r.GW != "" {
			gw, err := netip.ParseAddr(r.GW)
			if err != nil || gw.Zone() != "" || !usable(gw) {
				return nil, badIPAM("ipam.routes[%d].gw: %q is not a router's address", i, r.GW)
			}
			if gw.Is4() != dst.Addr().Is4() {
				return nil, badIPAM("ipam.routes[%d]: %s and its gw %s are of different families. Use a gw of the destination's family, or none", i, dst, gw)
			}
			route.GW = gw.AsSlice()
		}
		if r.MTU < 0 || r.AdvMSS < 0 || r.Priority < 0 {
			return nil, badIPAM("ipam.routes[%d]: mtu, advmss and priority must not be negative", i)
		}
		out = append(out, route)
	}
	return out, nil
}

func (k ipamKeys) dns() (types.DNS, error) {
	for i, s := range k.DNS.Nameservers {
		if net.ParseIP(s) == nil {
			return types.DNS{}, badIPAM("ipam.dns.nameservers[%d]: %q is not an IP address", i, s)
		}
	}
	d := k.DNS
	return types.DNS{Nameservers: d.Nameservers, Domain: d.Domain, Search: d.Search, Options: d.Options}, nil
}

// ipamArgs are the parts of CNI_ARGS that the plugin static supports, too.
type ipamArgs struct {
	podArgs
	IP      types.UnmarshallableString
	GATEWAY types.UnmarshallableString
}

func listOf(text types.UnmarshallableString) []string {
	var out []string
	for item := range strings.SplitSeq(string(text), ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}

// gatewayOf is the GATEWAY= in the subnet of an address of IP=, or empty.
func (a ipamArgs) gatewayOf(text string) string {
	p, err := netip.ParsePrefix(text)
	if err != nil || !slices.Contains(listOf(a.IP), text) {
		return ""
	}
	for _, g := range listOf(a.GATEWAY) {
		if gw, err := netip.ParseAddr(g); err == nil && p.Masked().Contains(gw) {
			return g
		}
	}
	return ""
}

// checkGateways rejects a GATEWAY= outside of the subnets of IP=.
func (a ipamArgs) checkGateways() error {
	for _, g := range listOf(a.GATEWAY) {
		gw, err := netip.ParseAddr(g)
		if err != nil || !slices.ContainsFunc(listOf(a.IP), func(text string) bool {
			p, err := netip.ParsePrefix(text)
			return err == nil && p.Masked().Contains(gw)
		}) {
			return invalidEnv("GATEWAY=%s of CNI_ARGS: %q is not a router in the subnet of an address of IP=. Addresses of IPPools have their pool's gateway, others that of ipam.addresses. Remove it", a.GATEWAY, g)
		}
	}
	return nil
}
