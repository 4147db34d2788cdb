package bridged

import (
	"testing"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
)

// Bridged pods beside routed ones that reach other nodes through a tunnel, and the outside by masquerade.
func TestRootEncap(t *testing.T) {
	c := up(t, lab.Options{})
	t.Run("announced", c.announced)
	places := c.places(t)
	t.Run("all", func(t *testing.T) { c.all(t, places, false) })
	t.Run("streams", func(t *testing.T) { c.streams(t, places) })
	t.Run("neighbours", func(t *testing.T) { c.neighbours(t, places) })
	t.Run("host traffic", func(t *testing.T) { c.hostTraffic(t, places) })
	t.Run("agent killed", func(t *testing.T) { c.agentKilled(t, places) })
}

// Bridged pods beside routed ones whose podCIDRs the underlay knows.
func TestRootFlat(t *testing.T) {
	c := up(t, lab.Options{RoutePods: true, Config: []byte("trafficEncapMode: noEncap\nnoSNAT: true\n")})
	places := c.places(t)
	t.Run("all", func(t *testing.T) { c.all(t, places, true) })
}
