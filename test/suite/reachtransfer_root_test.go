package suite

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// If single packets of every size pass but TCP does not, that is reported with its direction: large segments that are
// lost on the way, and connections that are not answered.
func TestRootReachTransfers(t *testing.T) {
	c := up(t, lab.Options{})
	c.allReached(t, "at the start")
	// Bits of the tunnel's packet, from its header of UDP: the type of the frame inside, the protocol, and TCP's flags.
	const tcp4, tcp6 = "@th,224,16 0x0800 @th,312,8 6 ", "@th,224,16 0x86dd @th,288,8 6 "
	const syn4, syn6 = "@th,504,8 2 ", "@th,664,8 2 "
	large := "ip length > 1000 "
	if ovstest.UnderTest(t) == ovstest.System {
		large = "meta length > 2000 " // segments longer than the MTU, which no NIC of a lab has to cut
	}
	const to2 = "ip saddr 192.168.77.11 ip daddr 192.168.77.12 udp dport 6081 "
	const to1 = "ip saddr 192.168.77.12 ip daddr 192.168.77.11 udp dport 6081 "
	var rules string
	for _, match := range []string{to2 + tcp4 + large, to2 + tcp6 + large, to1 + tcp4 + syn4, to1 + tcp6 + syn6} {
		rules += match + "counter drop\n"
	}
	c.sh(t, underlay.Hub, fmt.Sprintf("nft -f - <<'EOF'\ntable bridge f { chain c { type filter hook forward priority 10;\n%s}; }\nEOF", rules))
	began := time.Now()
	wait(t, labtest.Patience(t, 4*time.Minute), func() string {
		ways, alone := c.known(t)
		for way, want := range map[[2]string]string{{"node1", "node2"}: "no-tcp segments", {"node2", "node1"}: "no-tcp tcp"} {
			for _, family := range []string{"IPv4", "IPv6"} {
				if is := ways[[3]string{way[0], way[1], family}]; is != want {
					return fmt.Sprintf("from %s to %s in %s: %q, want %q", way[0], way[1], family, is, want)
				}
			}
			for _, found := range alone[way[0]].Findings {
				if !strings.HasSuffix(want, " "+found.Cause) {
					t.Errorf("%s reports %+v", way[0], found)
				}
			}
		}
		return ""
	})
	t.Logf("told after %s: %s", time.Since(began).Round(time.Second), c.host(t, underlay.Hub).exec(t, "nft list table bridge f"))
	c.sh(t, underlay.Hub, "nft delete table bridge f")
	began = time.Now()
	wait(t, labtest.Patience(t, 3*time.Minute), func() (missing string) {
		for _, node := range c.Nodes() {
			if r := c.reach(t, node); r == nil || r.Reached != 1 {
				missing += fmt.Sprintf("%s has %+v\n", node, r)
			}
		}
		return missing
	})
	t.Logf("well again after %s", time.Since(began).Round(time.Second))
}
