package standalone

import (
	"slices"
	"testing"

	"github.com/go-logr/logr/testr"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// Everything that makes a bridge differ from standalone mode is found; the effects of its ports and packets are not.
func TestDifferences(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	o.AddBridge("br-up", ovstest.Port{Name: "eth0", OFPort: 1}, ovstest.Port{Name: "eth1", OFPort: 2})
	o.Ctl("set", "bridge", "br-up", "fail_mode=standalone", "other_config:forward-bpdu=true")
	s, err := openflow.Dial(t.Context(), o.Mgmt("br-up"), testr.New(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	differences := func() []string {
		t.Helper()
		d, err := Differences(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := differences(); len(d) > 0 {
		t.Fatalf("a standalone bridge differs: %q", d)
	}
	for _, c := range []struct{ want, change, undo []string }{
		{[]string{`flow "table=0, priority=9 actions=drop" added`},
			[]string{"add-flow", "priority=9,actions=drop"}, []string{"del-flows", "--strict", "priority=9"}},
		{[]string{"flow NORMAL deleted"}, []string{"del-flows"}, []string{"add-flow", "priority=0,actions=NORMAL"}},
		{[]string{"port eth0 set to no-forward"}, []string{"mod-port", "eth0", "no-forward"},
			[]string{"mod-port", "eth0", "forward"}},
		{[]string{"port br-up set to no-receive"}, []string{"mod-port", "br-up", "no-receive"},
			[]string{"mod-port", "br-up", "receive"}},
	} {
		o.Ofctl(c.change[0], "br-up", c.change[1:]...)
		if d := differences(); !slices.Equal(d, c.want) {
			t.Errorf("after %s: %q, want %q", c.change, d, c.want)
		}
		o.Ofctl(c.undo[0], "br-up", c.undo[1:]...)
		if d := differences(); len(d) > 0 {
			t.Errorf("after %s: %q", c.undo, d)
		}
	}
}
