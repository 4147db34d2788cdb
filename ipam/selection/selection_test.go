package selection

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// made is an IPPool of the given VLAN; the smaller its minute, the older it is.
func made(name, cidr, gateway string, vlan, minute int) api.IPPool {
	p := netip.MustParsePrefix(cidr)
	return api.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(60*minute), 0))},
		Spec: api.IPPoolSpec{IPRanges: []api.IPRange{{CIDR: cidr}},
			SubnetInfo: &api.SubnetInfo{Gateway: gateway, PrefixLength: p.Bits(), VLAN: vlan}}}
}

func known() Known {
	k := Known{IPPools: map[string]api.IPPool{}, Devices: map[uint16]string{0: "eth0.0", 30: "eth0.30"}, Others: pool.Others{
		Nodes: []pool.Node{{Name: "n1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/24")},
			Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.11")}}},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}}
	broken := made("broken", "10.9.0.0/24", "10.8.0.1", 0, 1)
	going := made("going", "10.11.0.0/24", "10.11.0.1", 0, 1)
	going.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	isolated := made("isolated", "10.12.0.0/24", "10.12.0.1", 0, 1)
	isolated.Annotations = map[string]string{api.AnnotationNetwork: "lab"}
	for _, p := range []api.IPPool{
		made("four", "10.4.0.0/24", "10.4.0.1", 10, 1), made("more", "10.5.0.0/24", "10.5.0.1", 10, 1),
		made("six", "2001:db8:6::/64", "2001:db8:6::1", 10, 1), made("six20", "2001:db8:7::/64", "2001:db8:7::1", 20, 1),
		made("young", "10.4.0.128/25", "10.4.0.129", 0, 2), made("onpods", "10.77.0.0/23", "10.77.1.1", 0, 1),
		made("onnode", "192.0.2.0/24", "192.0.2.1", 0, 1), made("onservices", "10.96.4.0/24", "10.96.4.1", 0, 1),
		made("own30", "10.30.0.0/24", "10.30.0.1", 30, 1), made("untagged", "10.14.0.0/24", "10.14.0.1", 0, 1),
		broken, going, isolated,
	} {
		k.IPPools[p.Name] = p
	}
	return k
}

// pods is a Pod default/p and its Namespace, with their annotations ippools and pod-ips.
func pods(pools, ips, nsPools, nsIPs string) (pod, namespace Object) {
	object := func(name, pools, ips string) Object {
		return Object{name, map[string]string{api.AnnotationPools: pools, api.AnnotationPodIPs: ips}}
	}
	return object("Pod default/p", pools, ips), object("Namespace default", nsPools, nsIPs)
}

func TestChosen(t *testing.T) {
	for _, c := range []struct {
		name                      string
		pools, ips, nsPools, nsIP string
		want                      string // pools, addresses
	}{
		{"of the Pod", "four", "", "", "", "[four] []"},
		{"of the Namespace", "", "", "four", "", "[four] []"},
		{"the Pod's wins", "six", "", "four", "", "[six] []"},
		{"one of each family", "four, six", "", "", "", "[four six] []"},
		{"several of a family", "four,six,more", "", "", "", "[four six more] []"},
		{"with an address", "four", "10.4.0.7", "", "", "[four] [10.4.0.7]"},
		{"an address of the Namespace's pool", "", "10.4.0.7", "four", "", "[four] [10.4.0.7]"},
		{"an address of the second pool", "four,more", "10.5.0.7", "", "", "[four more] [10.5.0.7]"},
		{"two addresses", "four,six", "2001:db8:6::7,10.4.0.7", "", "", "[four six] [2001:db8:6::7 10.4.0.7]"},
		{"one of two families", "four,six", "10.4.0.7", "", "", "[four six] [10.4.0.7]"},
		{"the Namespace's address", "", "", "four", "10.4.0.7", "[four] [10.4.0.7]"},
		{"the Pod's address wins", "", "10.4.0.8", "four", "10.4.0.7", "[four] [10.4.0.8]"},
		{"an address for the Namespace's pool alone", "more", "", "four", "10.4.0.7", "[more] []"},
		{"untagged, on a node with an interface for priority tags", "untagged", "", "", "", "[untagged] []"},
		{"blank is nothing", " ", " ", " four ", "", "[four] []"},
	} {
		pod, ns := pods(c.pools, c.ips, c.nsPools, c.nsIP)
		if !RequestsPool(pod, ns) {
			t.Errorf("%s: not seen", c.name)
		}
		request, err := Read(pod, ns)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		chosen, err := request.Choose(known())
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		names := []string{}
		for _, p := range chosen {
			names = append(names, p.Name)
		}
		if got := fmt.Sprint(names, request.PodIPs); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
	if RequestsPool(pods("", "", "", "")) || RequestsPool(pods(" ", "", "", "\t")) {
		t.Error("a pod without annotations asks for a pool")
	}
}

// Each mistake has its own message: who, what, and what to change.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name                      string
		pools, ips, nsPools, nsIP string
		want                      string
	}{
		{"no pool for an address", "", "10.4.0.7", "", "", `Pod default/p asks for ipam.antrea.io/pod-ips="10.4.0.7", and neither the Pod nor its Namespace names a pool: add the annotation ipam.antrea.io/ippools with the IPPool that the address is in`},
		{"comma", "four,,six", "", "", "", `Pod default/p: annotation ipam.antrea.io/ippools is "four,,six", which has an extra comma: write it as "pool-a,pool-b"`},
		{"pool twice", "", "", "four,four", "", `Namespace default: annotation ipam.antrea.io/ippools names four twice: remove one`},
		{"no address", "four", "10.4.0.7/24", "", "", `Pod default/p: annotation ipam.antrea.io/pod-ips: "10.4.0.7/24" is not an address such as 192.0.2.7 or 2001:db8::7. Write addresses only, separated by commas: mask and gateway are the pool's`},
		{"IPv4-mapped", "four", "::ffff:10.4.0.7", "", "", `"::ffff:10.4.0.7" is not an address such as`},
		{"zone", "six", "fe80::1%eth0", "", "", `"fe80::1%eth0" is not an address such as`},
		{"two of a family", "four", "10.4.0.7,10.4.0.8", "", "", `Pod default/p: annotation ipam.antrea.io/pod-ips names two IPv4 addresses, 10.4.0.7 and 10.4.0.8: a pod has one of each family. Remove one`},
		{"unknown", "fuor", "", "", "", `Pod default/p asks for IPPool fuor: there is no such IPPool. There are broken, four, going, isolated, more and 8 more. Create it, or correct the annotation ipam.antrea.io/ippools`},
		{"unknown beside a known one", "", "", "four,fuor", "", `Namespace default asks for IPPool fuor: there is no such IPPool`},
		{"invalid", "broken", "", "", "", `Pod default/p asks for IPPool broken: it is invalid: IPPool broken: spec.ipRanges[0]: `},
		{"being deleted", "going", "", "", "", `Pod default/p asks for IPPool going: it is being deleted. Name another pool`},
		{"isolated", "isolated", "", "", "", `Pod default/p asks for IPPool isolated: its addresses are those of the isolated network lab`},
		{"younger of two", "young", "", "", "", `Pod default/p asks for IPPool young: it does not allocate addresses: pool young has address 10.4.0.130, and so has IPPool four: shorten spec.ipRanges`},
		{"on podCIDRs", "onpods", "", "", "", `and so has the podCIDR 10.77.0.0/24 of node n1`},
		{"on a node", "onnode", "", "", "", `pool onnode has address 192.0.2.11, and so has node n1`},
		{"on Services", "onservices", "", "", "", `and so has the Service CIDR 10.96.0.0/16`},
		{"node's own VLAN", "own30", "", "", "", `Pod default/p asks for IPPool own30: it is in VLAN 30, which the node itself uses on eth0.30: pods and node cannot share it. Remove eth0.30 from the node, or keep such pods off the node`},
		{"two VLANs", "four,six20", "", "", "", `Pod default/p asks for IPPool four, which is in VLAN 10, and for IPPool six20, which is in VLAN 20: a pod is in one VLAN. Name two pools of the same spec vlan`},
		{"address outside", "four", "10.6.0.7", "", "", `Pod default/p asks for ipam.antrea.io/pod-ips=10.6.0.7: 10.6.0.7 is outside of pool four. Choose another address, or another pool`},
		{"address outside of both", "four,more", "10.6.0.7", "", "", `10.6.0.7 is outside of pool four, and 10.6.0.7 is outside of pool more`},
		{"gateway", "", "10.4.0.1", "four", "", `Pod default/p asks for ipam.antrea.io/pod-ips=10.4.0.1: 10.4.0.1 is the gateway of pool four`},
		{"broadcast", "four", "10.4.0.255", "", "", `10.4.0.255 is not a pod address in the subnet 10.4.0.0/24 of pool four`},
		{"other family", "four", "2001:db8:6::7", "", "", `Pod default/p asks for ipam.antrea.io/pod-ips=2001:db8:6::7: it is IPv6, but no IPv6 pool is among four, which Pod default/p names`},
		{"the Namespace's address outside", "", "", "four", "10.6.0.7", `Namespace default asks for ipam.antrea.io/pod-ips=10.6.0.7`},
	} {
		pod, ns := pods(c.pools, c.ips, c.nsPools, c.nsIP)
		if !RequestsPool(pod, ns) {
			t.Errorf("%s: not seen", c.name)
		}
		var chosen []pool.Pool
		request, err := Read(pod, ns)
		if err == nil {
			chosen, err = request.Choose(known())
		}
		if err == nil {
			t.Errorf("%s: accepted as %v", c.name, chosen)
			continue
		}
		if got := err.Error(); !strings.Contains(got, c.want) {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}

// Where an old pool and a younger one overlap, the old one stays in use; an overlap with an invalid pool does not
// count.
func TestOverlapKeepsTheOldPool(t *testing.T) {
	k := known()
	bad := k.IPPools["broken"]
	bad.Name, bad.Spec.IPRanges = "bad", []api.IPRange{{CIDR: "10.4.0.0/24"}}
	k.IPPools["bad"] = bad
	chosen, err := PoolRequest{Pools: []string{"four"}, From: "Pod default/p"}.Choose(k)
	if err != nil || len(chosen) != 1 {
		t.Errorf("chosen %v, %v", chosen, err)
	}
	if !reflect.DeepEqual(k, func() Known { n := known(); n.IPPools["bad"] = bad; return n }()) {
		t.Error("what was passed in is changed")
	}
	delete(k.IPPools, "four")
	for name := range k.IPPools {
		if name != "young" {
			delete(k.IPPools, name)
		}
	}
	if _, err := (PoolRequest{Pools: []string{"young"}, From: "Pod default/p"}).Choose(k); err != nil {
		t.Errorf("a pool without an overlap: %v", err)
	}
	if _, err := (PoolRequest{Pools: []string{"x"}, From: "Pod default/p"}).Choose(Known{}); err == nil ||
		!strings.Contains(err.Error(), "There are no IPPools") {
		t.Errorf("without any pool: %v", err)
	}
}
