package rows

import (
	"context"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

func bridge() Bridge {
	return Bridge{Name: "br-uplink", Patch: "up1", Peer: "up0", Datapath: "dummy", MAC: "02:00:00:00:00:01", MTU: 1400, BootID: "b1"}
}

func read(t *testing.T, db DB) State {
	t.Helper()
	s, err := db.Read(context.Background(), bridge(), "p0")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Works in the same way with and without the server.
func TestRows(t *testing.T) {
	ctx := context.Background()
	for _, how := range []string{"server", "file"} {
		t.Run(how, func(t *testing.T) {
			o := ovstest.Start(t, ovstest.Options{})
			o.AddBridge("other", ovstest.Port{Name: "p1"})
			db := Find(o.Dir)
			if db.File != filepath.Join(o.Dir, "conf.db") {
				t.Fatalf("found %+v", db)
			}
			if how == "file" {
				o.Server.Kill()
			}
			must(t, db.Ensure(ctx, bridge(), "p0"))
			must(t, db.Ensure(ctx, bridge(), "p0"))
			if s := read(t, db); !s.Ours || !s.Complete || s.BootID != "b1" || s.NIC {
				t.Fatalf("after Ensure: %+v", s)
			}
			must(t, db.AddNIC(ctx, bridge(), "p0"))
			must(t, db.AddNIC(ctx, bridge(), "p0"))
			if s := read(t, db); !s.NIC || s.Elsewhere != "" {
				t.Fatalf("after AddNIC: %+v", s)
			}
			if err := db.AddNIC(ctx, bridge(), "p1"); err == nil || !strings.Contains(err.Error(), "bridge other") {
				t.Errorf("a port of another bridge: %v", err)
			}
			must(t, db.RemoveNIC(ctx, bridge(), "p0"))
			must(t, db.RemoveNIC(ctx, bridge(), "p0"))
			if s := read(t, db); s.NIC || !s.Complete {
				t.Fatalf("after RemoveNIC: %+v", s)
			}
			must(t, db.AddNIC(ctx, bridge(), "p0"))
			must(t, db.Remove(ctx, bridge()))
			must(t, db.Remove(ctx, bridge()))
			if s := read(t, db); s.Present || s.NIC {
				t.Fatalf("after Remove: %+v", s)
			}
			if how == "file" {
				o.Server.Start()
			}
			if out := o.Ctl("list-ports", "other"); strings.TrimSpace(out) != "p1" {
				t.Errorf("the other bridge has %q", out)
			}
		})
	}
}

// Reading the file takes no lock, which would make an ovsdb-server that starts meanwhile fail. Here one holds it.
func TestReadTakesNoLock(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	must(t, Find(o.Dir).Ensure(context.Background(), bridge(), "p0"))
	file := DB{RunDir: t.TempDir(), File: filepath.Join(o.Dir, "conf.db")}
	if s := read(t, file); !s.Complete {
		t.Errorf("%+v", s)
	}
	if err := file.AddNIC(context.Background(), bridge(), "p0"); err == nil || !strings.Contains(err.Error(), "lock") {
		t.Errorf("a change of a file that a server has open: %v", err)
	}
}

// An external change to any column is detected and reverted.
func TestRowsAreReverted(t *testing.T) {
	ctx := context.Background()
	o := ovstest.Start(t, ovstest.Options{})
	db := Find(o.Dir)
	must(t, db.Ensure(ctx, bridge(), "p0"))
	must(t, db.AddNIC(ctx, bridge(), "p0"))
	must(t, db.Retranslate(ctx, bridge(), "p0"))
	patch := read(t, db).patch
	for _, change := range []string{
		"set-fail-mode br-uplink secure", "set-controller br-uplink tcp:127.0.0.1:1", "del-port up1",
		"set Interface up1 options:peer=x", "set Interface up1 type=internal", "remove Bridge br-uplink other_config forward-bpdu",
		"set Bridge br-uplink other_config:hwaddr=02:00:00:00:00:09", "set Interface br-uplink mtu_request=1300",
		"remove Bridge br-uplink external_ids fairlead-boot-id", "set Bridge br-uplink datapath_type=system",
		"set Port br-uplink tag=7", "set Port p0 tag=5", "set Port p0 trunks=5,6", "set Port up1 vlan_mode=access",
		"set Port p0 protected=true", "set Interface br-uplink type=dummy", "set Interface p0 type=internal",
		"set Bridge br-uplink stp_enable=true", "set Bridge br-uplink rstp_enable=true", "set Bridge br-uplink flood_vlans=5",
		"-- --id=@p get Port p0 -- --id=@m create Mirror name=m select-all=true output-port=@p -- set Bridge br-uplink mirrors=@m",
	} {
		o.Ctl(append([]string{"--no-wait"}, strings.Fields(change)...)...)
		if s := read(t, db); s.Complete || len(s.Wrong) == 0 {
			t.Errorf("%s: not seen", change)
		}
		must(t, db.Ensure(ctx, bridge(), "p0"))
		if s := read(t, db); !s.Complete || !s.NIC {
			t.Errorf("%s: not repaired: %+v", change, s)
		} else if replaced := s.patch != patch; replaced != strings.Contains(change, " up1") {
			t.Errorf("%s: the patch port is replaced: %v", change, replaced)
		}
		patch = read(t, db).patch
	}
}

func TestForeignBridge(t *testing.T) {
	ctx := context.Background()
	o := ovstest.Start(t, ovstest.Options{})
	o.AddBridge("br-uplink", ovstest.Port{Name: "p0"})
	db := Find(o.Dir)
	if err := db.Ensure(ctx, bridge(), "p0"); err == nil || !strings.Contains(err.Error(), "Fairlead did not create") {
		t.Errorf("Ensure: %v", err)
	}
	must(t, db.RemoveNIC(ctx, bridge(), "p0"))
	must(t, db.Remove(ctx, bridge()))
	if out := o.Ctl("list-ports", "br-uplink"); strings.TrimSpace(out) != "p0" {
		t.Errorf("the foreign bridge has %q", out)
	}
}

// WaitApplied waits until ovs-vswitchd has applied what was written, and returns an error if it does not answer.
func TestWaitTaken(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := Find(o.Dir)
	o.Vswitchd.Signal(syscall.SIGSTOP)
	must(t, db.Ensure(t.Context(), bridge(), "p0"))
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := db.WaitApplied(soon); err == nil || !strings.Contains(err.Error(), "ovs-vswitchd does not answer") {
		t.Errorf("of a stopped ovs-vswitchd it says: %v", err)
	}
	o.Vswitchd.Signal(syscall.SIGCONT)
	late, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, db.WaitApplied(late))
}

// What ovs-vswitchd dropped before it knew the NIC's port passes at once, and not only after its next regular
// revalidation.
func TestRetranslate(t *testing.T) {
	ctx := t.Context()
	o := ovstest.Start(t, ovstest.Options{})
	o.Ctl("set", "Open_vSwitch", ".", "other_config:max-revalidator=600000")
	db := Find(o.Dir)
	must(t, db.Ensure(ctx, bridge(), "p0"))
	must(t, db.AddNIC(ctx, bridge(), "p0"))
	must(t, db.WaitApplied(ctx))
	flows := func() bool { return strings.Contains(o.Appctl("dpctl/dump-flows"), "eth_type(0x88cc)") }
	// The revalidations that the port and its carrier have caused are over once a wrong megaflow stays.
	nstest.Wait(t, time.Minute, "a wrong megaflow stays by itself, or this test cannot fail", func() bool {
		o.Appctl("revalidator/wait")
		if !flows() {
			o.Appctl("dpctl/add-flow", "in_port(1),packet_type(ns=0,id=0),eth(),eth_type(0x88cc)", "7")
		}
		time.Sleep(time.Second)
		return flows()
	})
	must(t, db.Retranslate(ctx, bridge(), "p0"))
	nstest.Wait(t, time.Minute, "the wrong megaflow is gone", func() bool { return !flows() })
	if s := read(t, db); !s.NIC || !s.Complete {
		t.Errorf("after Retranslate: %+v", s)
	}
}

// A server that hangs is distinguished from one that is down, in time, and its file is left alone.
func TestServerHangs(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := Find(o.Dir)
	must(t, db.Ensure(context.Background(), bridge(), "p0"))
	o.Server.Signal(syscall.SIGSTOP)
	_, err := db.Read(context.Background(), bridge(), "p0")
	if err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Error(err)
	}
	o.Server.Kill()
	if _, err := db.Read(context.Background(), bridge(), "p0"); err != nil {
		t.Errorf("the server is gone: %v", err)
	}
}
