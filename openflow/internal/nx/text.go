package nx

import (
	"fmt"
	"net/netip"
)

// String is the action as ovs-ofctl(8) prints it.
func (c Conntrack) String() string {
	b := []byte("ct(")
	if c.Commit {
		b = append(b, "commit,"...)
	}
	if c.Table != NoTable {
		b = fmt.Appendf(b, "table=%d,", c.Table)
	}
	if c.ZoneReg != 0 {
		b = fmt.Appendf(b, "zone=NXM_NX_REG%d[0..15],", c.ZoneReg)
	} else {
		b = fmt.Appendf(b, "zone=%d,", c.Zone)
	}
	if c.Mark != 0 {
		b = fmt.Appendf(b, "exec(set_field:%#x/%#[1]x->ct_mark),", c.Mark)
	}
	switch c.NAT.Kind {
	case NATApply:
		b = append(b, "nat,"...)
	case NATSrc:
		b = append(b, "nat(src="+c.NAT.text()+"),"...)
	case NATDst:
		b = append(b, "nat(dst="+c.NAT.text()+"),"...)
	}
	return string(b[:len(b)-1]) + ")"
}

// String is the action as ovs-ofctl(8) prints it.
func (l Learn) String() string {
	ip, kind, protocol := "NXM_OF_IP_%s[]", "0x800", "TCP"
	if l.IPv6 {
		ip, kind = "NXM_NX_IPV6_%s[]", "0x86dd"
	}
	if l.Protocol == udp {
		protocol = "UDP"
	}
	return fmt.Sprintf("learn(table=%d,idle_timeout=%d,priority=%d,cookie=%#x,eth_type=%s,nw_proto=%d,"+ip+","+ip+
		",NXM_OF_%s_DST[],reg4=%#x,load:%#x->NXM_NX_REG4[])", l.Table, l.Idle, l.Priority, l.Cookie, kind, l.Protocol, "SRC", "DST",
		protocol, l.Given, l.Value)
}

// text returns the range of addresses and ports.
func (n NAT) text() string {
	text := n.Addr.String()
	if n.First != 0 {
		text = netip.AddrPortFrom(n.Addr, n.First).String()
	}
	if n.Last > n.First {
		text += fmt.Sprintf("-%d", n.Last)
	}
	return text
}
