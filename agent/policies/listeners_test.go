package policies

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/test/flowtest"
)

// Reports of multicast listeners from a pod that may send nothing pass where switches need them, but other packets with
// the same protocol or type do not.
func TestListenersOfIsolatedPods(t *testing.T) {
	w := newWorld(t, networkPolicy(t, "nothing", nothing))
	w.update()
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	s.SetPolicies(w.Units(), true)
	flowtest.Sync(t, s, w.base())
	const a = "in_port=3,dl_src=0a:00:00:00:00:03,dl_dst=" + router
	const v = "in_port=12,dl_src=0a:00:00:00:00:0c,dl_dst=" + router
	const igmpA, mldA = a + ",ip,nw_src=10.10.0.3,nw_proto=2", a + ",icmp6,ipv6_src=fd00:10::3"
	const igmpV, mldV = v + ",ip,nw_src=192.168.110.112,nw_proto=2", v + ",icmp6,ipv6_src=fd77:0:0:a10::112"
	const mldLL = v + ",icmp6,ipv6_src=fe80::800:ff:fe00:c"
	for packet, want := range map[string]bool{
		igmpV + ",nw_ttl=1,nw_dst=224.0.0.22":                                  true,
		igmpV + ",nw_ttl=1,nw_dst=239.1.1.1":                                   true, // of version 2
		igmpV + ",nw_ttl=64,nw_dst=239.1.1.1":                                  false,
		igmpV + ",nw_ttl=1,nw_dst=203.0.113.9":                                 false,
		igmpV + ",nw_ttl=64,nw_dst=203.0.113.9":                                false,
		igmpV + ",nw_ttl=1,nw_dst=192.168.111.113":                             false,
		igmpA + ",nw_ttl=64,nw_dst=203.0.113.9":                                false,
		igmpA + ",nw_ttl=1,nw_dst=10.10.0.4":                                   false,
		mldLL + ",nw_ttl=1,icmpv6_type=143,ipv6_dst=ff02::16":                  true,
		mldLL + ",nw_ttl=1,icmpv6_type=131,ipv6_dst=ff02::1:ff00:112":          true,
		mldLL + ",nw_ttl=1,icmpv6_type=132,ipv6_dst=ff02::2":                   true,
		mldLL + ",nw_ttl=64,icmpv6_type=143,ipv6_dst=ff05::16":                 false,
		mldLL + ",nw_ttl=1,icmpv6_type=143,ipv6_dst=fe80::800:ff:fe00:d":       false,
		mldV + ",nw_ttl=64,icmpv6_type=143,ipv6_dst=2001:db8::9":               false,
		mldV + ",nw_ttl=1,icmpv6_type=132,ipv6_dst=2001:db8::9":                false,
		mldV + ",nw_ttl=64,icmpv6_type=130,ipv6_dst=fd77:0:0:b10::113":         false,
		mldA + ",nw_ttl=64,icmpv6_type=143,ipv6_dst=2001:db8::9":               false,
		mldA + ",nw_ttl=64,icmpv6_type=131,ipv6_dst=fd00:10::4":                false,
		mldA + ",nw_ttl=64,icmpv6_type=131,ipv6_dst=fd00:10:0:1::9":            false,
		v + ",ip,nw_src=192.168.110.112,nw_proto=6,nw_ttl=1,nw_dst=224.0.0.22": false,
	} {
		if report := o.Trace("br-int", packet); passes(report) != want {
			t.Errorf("%s: passes: %v, want %v\n%s", packet, !want, want, report)
		}
	}
	// Packets of routed pods to multicast groups are dropped, with policies or without. That is not a verdict, which
	// would be counted and perhaps logged.
	for packet, want := range map[string]bool{
		igmpA + ",nw_ttl=1,nw_dst=224.0.0.22":                  false,
		mldA + ",nw_ttl=1,icmpv6_type=143,ipv6_dst=ff02::16":   false,
		mldA + ",nw_ttl=1,icmpv6_type=132,ipv6_dst=ff02::2":    false,
		igmpA + ",nw_ttl=1,nw_dst=203.0.113.9":                 true,
		mldA + ",nw_ttl=1,icmpv6_type=143,ipv6_dst=2001:db8::": true,
	} {
		if report := o.Trace("br-int", packet); passes(report) || judges(report) != want {
			t.Errorf("%s: a verdict: %v, want %v\n%s", packet, !want, want, report)
		}
	}
}

// judges reports whether a flow of a trace is a verdict.
func judges(report string) bool {
	for _, m := range regexp.MustCompile(`cookie (0x[0-9a-f]+)`).FindAllStringSubmatch(report, -1) {
		if cookie, err := strconv.ParseUint(m[1], 0, 64); err == nil && openflow.KindOf(cookie) == openflow.KindVerdict {
			return true
		}
	}
	return false
}
