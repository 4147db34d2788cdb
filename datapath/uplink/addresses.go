package uplink

import (
	"net"
	"strings"

	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
)

// judgeAddresses refuses what nobody would renew on br-uplink. The kernel renews there what router advertisements made,
// if it makes the same address there, which it does from the MAC.
func (r *Report) judgeAddresses(nic hoststate.Link, f nicFacts) {
	mode := nic.Sysctls[hoststate.AddrGenMode]
	if mode == "2" || mode == "3" {
		r.refuse("it makes its IPv6 addresses of a secret (addr_gen_mode %s), and %s would make others: "+
			"sysctl -w net.ipv6.conf.%s.addr_gen_mode=0, or set fixed addresses", mode, BridgeName, nic.Name)
	}
	if len(nic.Addresses) == 0 {
		r.note("it has no addresses")
	}
	for _, o := range nic.Addresses {
		ip := o.IP()
		switch {
		case !o.Expires():
		case !o.IsIPv6():
			r.refuse("the address %s is valid for %s only: a DHCP client renews it on %s, and would not on %s. Give the "+
				"interface the address for good (in the DHCP server reserve it for this node, and on the node configure it "+
				"as static)", ip, o.Valid(), nic.Name, BridgeName)
		case !o.FromRA():
			r.refuse("the address %s is valid for %s only, and it is not the kernel that renews it (a DHCPv6 client, or a "+
				"network manager): configure it as static", ip, o.Valid())
		case mode != "2" && mode != "3" && !fromMAC(ip, nic.MAC):
			r.refuse("the address %s is of a router advertisement and not made from the MAC address (a token, or it was "+
				"made with another addr_gen_mode): the kernel would not renew it on %s. Configure it as static", ip, BridgeName)
		}
	}
	for _, o := range nic.Routes {
		if o.ByNexthopObject() {
			r.refuse("the route %q uses a next hop object (ip nexthop), which can't follow it: write its next hop into the route",
				o.Text)
		}
	}
	if len(f.tentative) > 0 {
		r.refuse("the kernel still asks whether %s is in use: try again", strings.Join(f.tentative, ", "))
	}
	if len(f.taken) > 0 {
		r.refuse("somebody else on the wire has the address %s: set another", strings.Join(f.taken, ", "))
	}
	if len(f.temporary) > 0 {
		r.note("temporary addresses (%s) do not move: the kernel makes new ones on %s, and connections that use them end",
			strings.Join(f.temporary, ", "), BridgeName)
	}
}

// fromMAC reports whether the lower half of an IPv6 address is that of RFC 4291, appendix A.
func fromMAC(ip net.IP, text string) bool {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 || len(ip) != net.IPv6len {
		return false
	}
	want := net.IP{mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}
	return string(ip[8:]) == string(want)
}
