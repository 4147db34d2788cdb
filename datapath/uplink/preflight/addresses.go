package preflight

import (
	"net"
	"strings"

	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/rows"
)

// judgeAddresses refuses addresses that would not be renewed on br-uplink. The kernel renews those from router
// advertisements there, if it derives the same address there, which it does from the MAC.
func (r *Report) judgeAddresses(nic hoststate.Link, f nicFacts) {
	mode := nic.Sysctls[hoststate.AddrGenMode]
	if mode == "2" || mode == "3" {
		r.refuse("it derives its IPv6 addresses from a secret (addr_gen_mode %s), and %s would derive different ones: "+
			"sysctl -w net.ipv6.conf.%s.addr_gen_mode=0, or set fixed addresses", mode, rows.BridgeName, nic.Name)
	}
	if len(nic.Addresses) == 0 {
		r.addNote("it has no addresses")
	}
	r.refuseLifetimes(nic, mode)
	for _, o := range nic.Routes {
		if o.ByNexthopObject() {
			r.refuse("the route %q uses a nexthop object (ip nexthop), which cannot be moved: write the next hop into the route",
				o.Text)
		}
	}
	if len(f.tentative) > 0 {
		r.refuse("duplicate address detection of %s is still running: try again", strings.Join(f.tentative, ", "))
	}
	if len(f.taken) > 0 {
		r.refuse("another host has the address %s: configure another one", strings.Join(f.taken, ", "))
	}
	if len(f.temporary) > 0 {
		r.addNote("temporary addresses (%s) do not move: the kernel makes new ones on %s, and connections that use them end",
			strings.Join(f.temporary, ", "), rows.BridgeName)
	}
}

// refuseLifetimes refuses addresses that expire, depending on addr_gen_mode.
func (r *Report) refuseLifetimes(nic hoststate.Link, mode string) {
	for _, o := range nic.Addresses {
		ip := o.IP()
		switch {
		case !o.Expires():
		case !o.IsIPv6():
			r.refuse("the address %s is valid for %s only: a DHCP client renews it on %s, but not on %s. Make the address permanent (reserve it for this node in the DHCP server, and configure it as static on the node)", ip, o.Valid(), nic.Name, rows.BridgeName)
		case !o.FromRA():
			r.refuse("the address %s is valid for %s only and is renewed by a DHCPv6 client or a network manager, not by the kernel: configure it as static", ip, o.Valid())
		case mode != "2" && mode != "3" && !fromMAC(ip, nic.MAC):
			r.refuse("the address %s comes from a router advertisement but is not derived from the MAC address (a token, or another addr_gen_mode): the kernel would not renew it on %s. Configure it as static", ip, rows.BridgeName)
		}
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
