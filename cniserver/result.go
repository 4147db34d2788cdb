package cniserver

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// encodeResult returns res as the ADD result of the CNI version of c: the host end first, then the pod's interface,
// which has the addresses.
func (c *call) encodeResult(res Result) (json.RawMessage, error) {
	r := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			{Name: res.HostIf},
			{Name: c.request.IfName, Mac: res.MAC.String(), Sandbox: c.request.Netns},
		},
		DNS: c.dns,
	}
	if c.cniVersion == types100.ImplementedSpecVersion {
		r.Interfaces[1].Mtu = res.MTU // a key that 1.0.0 does not have
	}
	for _, a := range res.Addrs {
		r.IPs = append(r.IPs, &types100.IPConfig{
			Interface: types100.Int(1),
			Address:   *netaddr.IPNet(a),
			Gateway:   gatewayFor(a, res.Gateways),
		})
	}
	for _, gw := range res.Gateways {
		unspecified := netip.IPv4Unspecified()
		if gw.Is6() {
			unspecified = netip.IPv6Unspecified()
		}
		r.Routes = append(r.Routes, &types.Route{Dst: *netaddr.IPNet(netip.PrefixFrom(unspecified, 0)), GW: gw.AsSlice()})
	}
	return c.encode(r)
}

// encodeAddresses returns the ADD result of an IPAM plugin: the allocated addresses, then those that the configuration
// names, and its routes and DNS. They are not assigned to an interface yet.
func (c *call) encodeAddresses(given []Address) (json.RawMessage, error) {
	r := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, Routes: c.ipam.routes, DNS: c.ipam.dns}
	for _, a := range slices.Concat(given, c.ipam.static) {
		r.IPs = append(r.IPs, &types100.IPConfig{Address: *netaddr.IPNet(a.Prefix), Gateway: a.Gateway.AsSlice()})
	}
	return c.encode(r)
}

// encode converts r to the version of the spec of c.
func (c *call) encode(r *types100.Result) (json.RawMessage, error) {
	converted, err := r.GetAsVersion(c.cniVersion)
	if err != nil {
		return nil, fmt.Errorf("converting the result to CNI %s: %w", c.cniVersion, err)
	}
	return json.Marshal(converted)
}

// gatewayFor returns the gateway of a's family, or nil.
func gatewayFor(a netip.Prefix, gateways []netip.Addr) net.IP {
	for _, gw := range gateways {
		if gw.Is4() == a.Addr().Is4() {
			return gw.AsSlice()
		}
	}
	return nil
}
