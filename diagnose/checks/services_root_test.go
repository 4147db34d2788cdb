package checks

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/test/nstest"
)

// kube-proxy's rules are detected in each of its modes, and no others are.
func TestRootKubeProxyRules(t *testing.T) {
	nstest.Need(t)
	for rules, want := range map[string]bool{
		"true":                                false,
		"nft add table ip own":                false,
		"nft add table ip kube-proxy":         true,
		"iptables -t nat -N KUBE-POSTROUTING": false,
		"iptables -t nat -N KUBE-SERVICES && iptables -t nat -A PREROUTING -j KUBE-SERVICES":               true,
		"ip6tables -t nat -N KUBE-SERVICES && ip6tables -t nat -A PREROUTING -j KUBE-SERVICES":             true,
		"iptables-legacy -t nat -N KUBE-SERVICES && iptables-legacy -t nat -A PREROUTING -j KUBE-SERVICES": true,
	} {
		n := nstest.New(t)
		n.Exec("sh", "-c", rules)
		n.Must(func() error {
			if got := kubeProxyRules(t.Context()); got != want {
				t.Errorf("after %q: %v, want %v", rules, got, want)
			}
			return nil
		})
	}
}

// What Services need on a node is reported if it is missing.
func TestServicesOnNode(t *testing.T) {
	s := cluster.Services{Ranges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}
	web := cluster.Service{Service: inputs.Service{Namespace: "shop", Name: "web",
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.9"), netip.MustParseAddr("fd00::9")}}}
	s.All = []cluster.Service{web}
	ovs, host := api.AgentConfig{Services: api.ServicesOVS}, api.AgentConfig{Services: api.ServicesHost}

	if got := outsideRanges(s, ovs); len(got) != 1 || got[0].About[0] != "shop/web (fd00::9)" {
		t.Errorf("without a range of IPv6: %+v", got)
	}
	both := ovs
	both.ServiceCIDRv6 = netip.MustParsePrefix("fd00::/112")
	if got := append(outsideRanges(s, both), outsideRanges(s, host)...); len(got) > 0 {
		t.Errorf("with a range of IPv6, or kube-proxy: %+v", got)
	}

	if got := append(withoutProxy(s, ovs, false), withoutProxy(s, host, true)...); len(got) > 0 {
		t.Errorf("where nothing needs kube-proxy, or it is there: %+v", got)
	}
	if got := withoutProxy(s, host, false); len(got) != 1 || !strings.Contains(got[0].Cause, "pods on this node reach no Service") {
		t.Errorf("services: host without kube-proxy: %+v", got)
	}
	s.All[0].Entrances = []string{"NodePort 30080"}
	if got := withoutProxy(s, ovs, false); len(got) != 1 || !strings.Contains(got[0].Evidence[1], "shop/web (NodePort 30080)") {
		t.Errorf("a NodePort without kube-proxy: %+v", got)
	}

	s.All[0].Affinity = 65535 * time.Second
	if got := shorterAffinity(s); len(got) > 0 {
		t.Errorf("session affinity that Open vSwitch can do: %+v", got)
	}
	s.All[0].Affinity = 24 * time.Hour
	patch := `kubectl -n shop patch service web -p '{"spec":{"sessionAffinityConfig":{"clientIP":{"timeoutSeconds":65535}}}}'`
	if got := shorterAffinity(s); len(got) != 1 || got[0].Evidence[0] != "shop/web asks for 86400 s" ||
		got[0].Remedies[0].Commands[0] != patch || !strings.Contains(got[0].Cause, "endpoint of shop/web, which asks for") {
		t.Errorf("session affinity that it cannot: %+v", got)
	}

	for count, want := range map[string]int{"79": 0, "80\n": 1, "100": 1, "": 0} {
		if got := full("conntrack", count, "100", "set "); len(got) != want || want == 1 && got[0].Remedies[0].Commands[0][:7] != "set 200" {
			t.Errorf("%s of 100: %+v", count, got)
		}
	}
}
