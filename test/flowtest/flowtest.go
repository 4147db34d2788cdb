// Package flowtest has what the tests of flows share: an Open vSwitch with the ports of a node, and the comparison of
// flows as text. It does not import package openflow, whose own tests use it.
package flowtest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// OpenFlow ports of a Node: the tunnel, the gateway, two routed pods, the uplink, and bridged pods.
const (
	Tunnel  = 1
	Gateway = 2
	PodA    = 3
	PodB    = 4
	Uplink  = 5
	PodU    = 10
	PodW    = 11
	PodV    = 12
	PodX    = 13
	PodY    = 14
)

// Node is an Open vSwitch with the bridge br-int and the ports of a node, and an underlay that has resolved the peers
// 192.168.77.2 and 192.168.77.3.
func Node(t testing.TB) *ovstest.OVS {
	t.Helper()
	o := ovstest.Start(t, ovstest.Options{})
	o.AddBridge("br-int",
		ovstest.Port{Name: "tun0", OFPort: Tunnel, Type: "geneve",
			Columns: []string{"options:remote_ip=flow", "options:key=flow"}},
		ovstest.Port{Name: "gw0", OFPort: Gateway, Type: "internal"},
		ovstest.Port{Name: "pod-a", OFPort: PodA}, ovstest.Port{Name: "pod-b", OFPort: PodB},
		ovstest.Port{Name: "up", OFPort: Uplink}, ovstest.Port{Name: "pod-u", OFPort: PodU},
		ovstest.Port{Name: "pod-w", OFPort: PodW}, ovstest.Port{Name: "pod-v", OFPort: PodV},
		ovstest.Port{Name: "pod-x", OFPort: PodX}, ovstest.Port{Name: "pod-y", OFPort: PodY})
	o.AddBridge("br-phy", ovstest.Port{Name: "eth0", OFPort: 1})
	o.Ofctl("add-flow", "br-phy", "actions=output:1")
	o.Appctl("netdev-dummy/ip4addr", "br-phy", "192.168.77.1/24")
	o.Appctl("ovs/route/add", "192.168.77.0/24", "br-phy")
	for i := 2; i <= 3; i++ {
		o.Appctl("tnl/neigh/set", "br-phy", fmt.Sprintf("192.168.77.%d", i), fmt.Sprintf("0c:00:00:00:00:%02x", i))
	}
	return o
}

// Dial connects to the node's bridge until the test ends.
func Dial[S interface{ Close() }](t testing.TB, o *ovstest.OVS,
	dial func(context.Context, string, logr.Logger) (S, error)) S {
	t.Helper()
	log := logr.Discard()
	if tt, ok := t.(*testing.T); ok {
		log = testr.New(tt)
	}
	s, err := dial(t.Context(), o.Mgmt("br-int"), log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Sync applies the flows to the switch, and returns what it changed.
func Sync[F, C any](t testing.TB, s interface {
	Sync(context.Context, []F) (C, error)
}, want []F) C {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	changes, err := s.Sync(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	return changes
}

// Flows are those of the bridge as ovs-ofctl prints them, one a line.
func Flows(o *ovstest.OVS) string {
	var b strings.Builder
	for line := range strings.Lines(o.Ofctl("dump-flows", "br-int", "--no-stats", "--no-names")) {
		if strings.Contains(line, "actions=") {
			b.WriteString(strings.TrimLeft(line, " "))
		}
	}
	return b.String()
}

// Text is flows one a line.
func Text[F fmt.Stringer](flows []F) string {
	var b strings.Builder
	for _, f := range flows {
		b.WriteString(f.String() + "\n")
	}
	return b.String()
}

// Sorted has the lines of text in order.
func Sorted(text string) string { return strings.Join(slices.Sorted(strings.Lines(text)), "") }

// Diff lists the lines that only one of two texts has.
func Diff(want, got string) string {
	var b strings.Builder
	in := func(text, line string) bool { return strings.Contains("\n"+text, "\n"+line) }
	for line := range strings.Lines(want) {
		if !in(got, line) {
			b.WriteString("-" + line)
		}
	}
	for line := range strings.Lines(got) {
		if !in(want, line) {
			b.WriteString("+" + line)
		}
	}
	if b.Len() == 0 && want != got {
		return "the same lines in another order or number"
	}
	return b.String()
}

// MAC reads an address.
func MAC(t testing.TB, s string) api.MAC {
	t.Helper()
	m, err := api.ParseMAC(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Addrs reads a list with commas.
func Addrs(list string) (out []netip.Addr) {
	for s := range strings.FieldsFuncSeq(list, isComma) {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// Prefixes reads a list with commas.
func Prefixes(list string) (out []netip.Prefix) {
	for s := range strings.FieldsFuncSeq(list, isComma) {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func isComma(r rune) bool { return r == ',' }
