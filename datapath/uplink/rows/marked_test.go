package rows

import (
	"context"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// Fairlead's timeouts of conntrack zones are removed, with the Datapath that was added for them; those of other
// programs stay, with their Datapath.
func TestRemoveMarkedZones(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name, datapath string
		commands       []string
		left           string
	}{
		{"all ours", "external_ids:fairlead=conntrack", nil, ""},
		{"their datapath", "external_ids:of=another", nil, "dummy"},
		{"their zone in ours", "external_ids:fairlead=conntrack", []string{"add-zone-tp dummy zone=7 tcp_close=9"}, "dummy 7"},
	} {
		for _, how := range []string{"server", "file"} {
			t.Run(c.name+", "+how, func(t *testing.T) {
				o := ovstest.Start(t, ovstest.Options{})
				ctl := func(line string) string { return o.Ctl(append([]string{"--no-wait"}, strings.Fields(line)...)...) }
				ctl("-- --id=@p create CT_Timeout_Policy timeouts:tcp_close=5 external_ids:fairlead=conntrack" +
					" -- --id=@a create CT_Zone timeout_policy=@p external_ids:fairlead=conntrack" +
					" -- --id=@b create CT_Zone timeout_policy=@p external_ids:fairlead=conntrack" +
					" -- --id=@d create Datapath ct_zones:40960=@a ct_zones:45056=@b " + c.datapath +
					" -- set Open_vSwitch . datapaths:dummy=@d")
				for _, command := range c.commands {
					ctl(command)
				}
				db := Find(o.Dir)
				if how == "file" {
					o.Server.Kill()
				}
				m, err := db.FindMarked(ctx)
				must(t, err)
				if m.Zones != 2 || m.Empty() {
					t.Errorf("found %+v", m)
				}
				must(t, db.RemoveMarked(ctx, m))
				m, err = db.FindMarked(ctx)
				must(t, err)
				if !m.Empty() {
					t.Errorf("left: %+v", m)
				}
				if how == "file" {
					o.Server.Start()
				}
				left := strings.Fields(strings.Trim(ctl("get Open_vSwitch . datapaths"), "{}\n"))
				if c.left == "" && len(left) > 0 || c.left != "" && (len(left) != 1 || !strings.HasPrefix(left[0], "dummy=")) {
					t.Errorf("datapaths left: %v", left)
				}
				if zones := ctl("--bare --columns=_uuid list CT_Zone"); (strings.TrimSpace(zones) != "") != strings.Contains(c.left, "7") {
					t.Errorf("zones left: %s", zones)
				}
			})
		}
	}
}
