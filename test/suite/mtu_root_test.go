package suite

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// fullPackets expects pods and gateway to have this MTU, packets of that size to arrive unfragmented, and larger ones
// to be rejected at once.
func fullPackets(t *testing.T, c cluster, mtu int) {
	a, b, remote := c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c")
	for _, p := range []place{a, b, remote} {
		if got := p.link(t, "eth0").MTU; got != mtu {
			t.Errorf("pod %s has MTU %d, want %d", p.name, got, mtu)
		}
	}
	if got := c.host(t, "node1").link(t, "fairlead-gw0").MTU; got != mtu {
		t.Errorf("the gateway has MTU %d, want %d", got, mtu)
	}
	for i := range a.ips {
		for _, to := range []netip.Addr{b.ips[i], remote.ips[i], c.family.FarAddrs()[i].Addr()} {
			reach(t, a, to, "-Mdo", "-s", fmt.Sprint(mtu-headers(to)))
			out, err := a.run("ping", "-c1", "-W0.1", "-Mdo", "-s", fmt.Sprint(mtu-headers(to)+1), to.String())
			if err == nil || !strings.Contains(out, "message too long") {
				t.Errorf("a packet of %d bytes to %s is not refused: %s", mtu+1, to, out)
			}
		}
		reach(t, c.host(t, "node1"), remote.ips[i], "-Mdo", "-s", fmt.Sprint(mtu-headers(remote.ips[i])))
		// Fragmented it arrives.
		reach(t, a, remote.ips[i], "-s", "4000")
	}
}

// headers are the bytes of a ping packet around its payload.
func headers(a netip.Addr) int {
	if a.Is4() {
		return 20 + 8
	}
	return 40 + 8
}

func TestRootMTUFollowsUnderlay(t *testing.T) {
	c := up(t, lab.Options{NoAgent: true})
	for i, node := range c.Nodes() {
		c.host(t, underlay.Hub).exec(t, "ip link set "+node+" mtu 1400")
		c.host(t, node).exec(t, "ip link set eth0 mtu 1400")
		wait(t, 5*time.Second, func() string {
			if mtu := c.host(t, node).link(t, c.Transport()).MTU; mtu != 1400 {
				return fmt.Sprintf("%s of node%d has MTU %d, want 1400 like its NIC", c.Transport(), i+1, mtu)
			}
			return ""
		})
		must(t, 0, c.AgentStart(t.Context(), node))
	}
	for _, node := range c.Nodes() {
		must(t, 0, c.WaitReady(labtest.Within(t, 30*time.Second), node))
	}
	c.addPods(t, "a@node1", "b@node1", "c@node2")
	c.warm(t)
	fullPackets(t, c, 1350)
}

func TestRootDefaultMTU(t *testing.T) {
	c := up(t, lab.Options{Config: []byte("defaultMTU: 1300")})
	c.addPods(t, "a@node1", "b@node1", "c@node2")
	c.warm(t)
	fullPackets(t, c, 1300)
}
