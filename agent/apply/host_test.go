package apply

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/uplink/steer"
)

// Bridged pods have the underlay's MTU, and none of them is reported for not having the tunnel's.
func TestMTUOfEachKindOfPod(t *testing.T) {
	want := desired.State{PodMTU: 1450, BridgedMTU: 1500}
	want.OVSDB.Pods = []api.Attachment{{HostIf: "flrouted"}, {HostIf: "flbridged", Bridged: true}}
	if got := mtuByHost(want); !maps.Equal(got, map[string]int{"flrouted": 1450, "flbridged": 1500}) {
		t.Errorf("by host end: %v", got)
	}
}

// The eBPF programs get the pods when these have changed, again after an error, and in each round that verifies.
func TestSteerIsReported(t *testing.T) {
	var told [][]steer.Entry
	var fails error
	s := NewSteer(func(all []steer.Entry) error { told = append(told, all); return fails })
	one := &Round{Want: desired.State{Steer: []steer.Entry{{MAC: api.MAC{2, 0, 0, 0, 0, 1}, VLAN: 7}}}}
	for _, c := range []struct {
		when  string
		round *Round
		err   error
		want  int // updates so far
	}{
		{"no pod, of which the programs know none", &Round{}, nil, 0},
		{"a pod", one, errors.New("full"), 1},
		{"a pod, after an error", one, nil, 2},
		{"the same", one, nil, 2},
		{"the same, verified", &Round{Want: one.Want, Verify: true}, nil, 3},
		{"gone", &Round{}, nil, 4},
		{"a pod again, of which a part may have been taken", one, errors.New("full"), 5},
		{"gone, after an error", &Round{}, nil, 6},
	} {
		fails = c.err
		if _, err := s.Apply(t.Context(), c.round); !errors.Is(err, c.err) {
			t.Errorf("%s: %v", c.when, err)
		}
		if len(told) != c.want {
			t.Errorf("%s: applied %d times, want %d", c.when, len(told), c.want)
		} else if c.want > 0 && !slices.Equal(told[len(told)-1], c.round.Want.Steer) {
			t.Errorf("%s: applied %v", c.when, told[len(told)-1])
		}
	}
}
