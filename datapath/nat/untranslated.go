package nat

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tcpSynSent is the state of a connection of which conntrack has seen only SYNs (TCP_CONNTRACK_SYN_SENT of
// linux/netfilter/nf_conntrack_tcp.h).
const tcpSynSent = 1

// flushUntranslated deletes the conntrack entries of connections of the family that pods have opened to the outside
// while the rules of table nat were missing, or not yet there: adding a rule can enable conntrack before the rule takes
// effect. Conntrack decides once whether it translates a connection, by its first packet; without this it would get no
// reply for as long as the pod sends. The result is a description; empty if there was none.
func (d Desired) flushUntranslated(f family) (change string) {
	if !d.Masquerade || len(f.of(d.PodCIDRs)) == 0 {
		return ""
	}
	number := netlink.InetFamily(unix.AF_INET)
	if f.is6 {
		number = unix.AF_INET6
	}
	local, err := net.InterfaceAddrs()
	var n uint
	if err == nil {
		n, err = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, number, untranslated{d, local})
	}
	switch {
	case err != nil:
		return fmt.Sprintf("conntrack: connections that began without masquerading may continue until pods stop sending "+
			"(conntrack -D ends them): %v; deleted: %d", err, n)
	case n > 0:
		return fmt.Sprintf("conntrack: deleted connections that began without masquerading: %d", n)
	}
	return ""
}

// untranslated matches connections of routed pods to the outside that are not translated. Of TCP only unanswered ones:
// the others work, as the underlay has a route to the pods.
type untranslated struct {
	d     Desired
	local []net.Addr // the node's own addresses, which pods reach without being translated
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter. Zone 0 is the host's; the others are Open vSwitch's.
func (u untranslated) MatchConntrackFlow(c *netlink.ConntrackFlow) bool {
	src, dst := c.Forward.SrcIP, c.Forward.DstIP
	if c.Zone != 0 || !src.Equal(c.Reverse.DstIP) || !dst.Equal(c.Reverse.SrcIP) {
		return false
	}
	if tcp, ok := c.ProtoInfo.(*netlink.ProtoInfoTCP); ok && tcp.State != tcpSynSent {
		return false
	}
	return anyContains(u.d.PodCIDRs, src) && dst.IsGlobalUnicast() && !anyContains(u.d.PodCIDRs, dst) &&
		!anyContains(u.d.NotMasqueraded, dst) && !slices.ContainsFunc(u.local, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(dst)
	})
}

func anyContains(prefixes []netip.Prefix, ip net.IP) bool {
	a, _ := netip.AddrFromSlice(ip)
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
}
