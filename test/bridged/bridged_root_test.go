package bridged

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// Bridged pods beside routed pods. Routed pods reach other nodes through a tunnel, and the outside by masquerade. The
// NIC is found by a pattern, also by the agents that start while another interface has its addresses.
func TestRootEncap(t *testing.T) {
	o := lab.Options{Config: []byte("transportInterface: eth*\n")}
	eachUplink(t, o, func(t *testing.T, c cluster) { c.everything(t, false) })
}

func (c cluster) everything(t *testing.T, flat bool) {
	t.Run("announced", c.announced)
	places := c.places(t)
	t.Run("all", func(t *testing.T) { c.all(t, places, flat) })
	t.Run("streams", func(t *testing.T) { c.streams(t, places, flat) })
	t.Run("trace", c.traced)
	t.Run("neighbours", func(t *testing.T) { c.neighbours(t, places) })
	t.Run("priority tags", func(t *testing.T) { c.priorityTags(t, places) })
	t.Run("lies", func(t *testing.T) { c.lies(t, places) })
	t.Run("host traffic", func(t *testing.T) { c.hostTraffic(t, places) })
	t.Run("agent killed", func(t *testing.T) { c.agentKilled(t, places) })
}

// eachUplink runs a test in labs of both uplink modes. Tunnels of the userspace datapath need mode bridge.
func eachUplink(t *testing.T, o lab.Options, test func(*testing.T, cluster)) {
	noEncap := bytes.Contains(o.Config, []byte("noEncap"))
	for _, o.Uplink = range []string{api.UplinkBridge, api.UplinkSteer} {
		if o.Uplink == api.UplinkSteer && ovstest.UnderTest(t) == ovstest.Netdev && !noEncap {
			continue
		}
		t.Run(o.Uplink, func(t *testing.T) {
			if o.Uplink == api.UplinkSteer && noEncap {
				ovstest.UserspaceOnly(t, "steer is tried with tunnels where they can be had")
			}
			test(t, up(t, o))
		})
	}
}

// traced checks that lab trace follows a packet over the underlay to the pod on the other node.
func (c cluster) traced(t *testing.T) {
	for from, to := range map[string]string{"a-0-node1": "a-0-node2", "a-10-node1": "a-20-node2"} {
		way, err := c.Trace(labtest.Within(t, 20*time.Second), "default/"+from, "default/"+to)
		if want := "  output to pod default/" + to; err != nil || !slices.Contains(way, want) {
			t.Errorf("from %s to %s: %v, and the way is\n%s\nwant %q", from, to, err, strings.Join(way, "\n"), want)
		}
	}
}

// Bridged pods beside routed pods whose podCIDRs are routed in the underlay.
func TestRootFlat(t *testing.T) {
	o := lab.Options{RoutePods: true, Config: []byte("trafficEncapMode: noEncap\nnoSNAT: true\n")}
	eachUplink(t, o, func(t *testing.T, c cluster) {
		if c.Uplink() == api.UplinkSteer { // has no encap
			c.everything(t, true)
			return
		}
		places := c.places(t)
		t.Run("all", func(t *testing.T) { c.all(t, places, true) })
	})
}
