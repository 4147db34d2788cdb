package uplink

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	datapath "github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
	"github.com/fairlead-cni/fairlead/internal/bootid"
	"github.com/fairlead-cni/fairlead/test/ovsrelease"
)

// detached is an agent whose journal, after change, has a detached NIC that does not exist. Open vSwitch does not run,
// and its database has nothing of Fairlead's.
func detached(t *testing.T, change func(*journal.Journal)) *Uplink {
	t.Helper()
	boot, err := bootid.Read()
	if err != nil {
		t.Fatal(err)
	}
	dir, nic := t.TempDir(), hoststate.Link{}
	path := filepath.Join(dir, "uplink.json")
	t.Cleanup(func() { os.RemoveAll(filepath.Dir(journal.InMemory(path))) })
	nic.Name, nic.Index, nic.MTU = "nope0", 1<<30, 1500
	j := &journal.Journal{Version: journal.Version, BootID: boot, Phase: datapath.Detached, NIC: nic}
	j.Bridge.Name, j.Bridge.Patch, j.Bridge.Peer = datapath.BridgeName, datapath.PatchPort, datapath.PeerPort
	j.DB.RunDir, j.DB.File = dir, filepath.Join(dir, "conf.db")
	change(j)
	schema, err := ovsrelease.Schema()
	if err == nil {
		err = exec.Command("ovsdb-tool", "create", j.DB.File, schema).Run()
	}
	var text []byte
	if err == nil {
		text, err = journal.Encode(j)
	}
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	n := Open(path, api.AgentConfig{EnableBridgingMode: true, OVSRunDir: dir}, api.DefaultIntervals().Agent, nil,
		status.NewMetrics("test"), logr.Discard())
	n.nic = "nope0"
	return n
}

// A NIC that the config no longer wants attached, and that could not be restored when the agent started, is restored as
// soon as possible.
func TestNotWantedIsTriedAgain(t *testing.T) {
	n := detached(t, func(j *journal.Journal) { j.Phase = datapath.Attached })
	n.cfg.EnableBridgingMode, n.every.Uplink = false, 10*time.Millisecond
	db := n.uplink.Journal().DB.File
	if err := os.Rename(db, db+".away"); err != nil {
		t.Fatal(err)
	}
	n.Resume(t.Context())
	n.Attach(t.Context(), "nope0")
	if !n.uplink.Unfinished() {
		t.Fatalf("restored without a database: %+v", n.uplink.Journal())
	}
	if err := os.Rename(db+".away", db); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ended := make(chan struct{})
	go func() { n.Run(ctx); close(ended) }()
	select {
	case <-n.Changed:
	case <-ctx.Done():
		t.Error("it was not tried again")
	}
	stop()
	<-ended
	if j := n.uplink.Journal(); j.Phase != datapath.Detached {
		t.Errorf("it is %s: %v", j.Phase, n.Ready())
	}
}

// tries reports whether a running agent attaches the NIC at its next check.
func (n *Uplink) tries(t *testing.T) bool {
	t.Helper()
	n.retry(t.Context())
	if n.Ready() == nil {
		t.Fatal("a NIC is attached that does not exist")
	}
	return strings.Contains(n.Ready().Error(), "looking up interface nope0: Link not found")
}

// A manual restore is respected, even if it was interrupted. A NIC that is detached for any other reason is attached as
// at the first start: Open vSwitch or the NIC may come up later than the agent, or a disk may have free space again.
func TestWhatIsTriedAgain(t *testing.T) {
	due, later := time.Now().Add(-time.Second), time.Time{} // set for each case
	for what, of := range map[string]struct {
		change func(j *journal.Journal)
		tried  bool
	}{
		"rebooted":         {func(j *journal.Journal) { j.Reason = datapath.Rebooted }, true},
		"no bridging then": {func(j *journal.Journal) { j.Reason = "enableBridgingMode is not set" }, true},
		"another mode":     {func(j *journal.Journal) { j.Reason = "the mode is to be steer" }, true},
		"a step failed": {func(j *journal.Journal) {
			j.Reason, j.Failed, j.Tries, j.RetryAt = `step "port": timed out`, true, 1, due
		}, true},
		"a step failed just now": {func(j *journal.Journal) {
			j.Reason, j.Failed, j.Tries, j.RetryAt = `step "port": timed out`, true, 1, later
		}, false},
		"a step failed just now, and that was not undone": {func(j *journal.Journal) {
			j.Phase, j.Reason, j.Failed, j.Tries, j.RetryAt = datapath.Restoring, `step "port": timed out`, true, 1, later
		}, false},
		"no answer just now": {func(j *journal.Journal) {
			j.Reason, j.Unreached, j.Tries, j.RetryAt = "no answer", true, 1, later
		}, false},
		"restored manually":        {func(j *journal.Journal) { j.Reason = datapath.ByHand }, false},
		"a manual restore cut off": {func(j *journal.Journal) { j.Phase, j.Reason = datapath.Restoring, datapath.ByHand }, false},
	} {
		t.Run(what, func(t *testing.T) {
			later = time.Now().Add(5 * time.Minute) // no earlier than the end of any wait
			n := detached(t, of.change)
			if n.tries(t) != of.tried {
				t.Errorf("tried %t, want %t: %v", !of.tried, of.tried, n.Ready())
			}
			if j := n.uplink.Journal(); j.Phase != datapath.Detached {
				t.Errorf("the phase is %s", j.Phase)
			}
		})
	}
}

// A manual restore of a NIC that is detached, or being detached, and due to be attached again, cancels that.
func TestRestoredManually(t *testing.T) {
	for what, change := range map[string]func(j *journal.Journal){
		"no answer": func(j *journal.Journal) {
			j.Reason, j.Unreached, j.RetryAt = "no answer", true, time.Now().Add(5*time.Minute)
		},
		"yielded":  func(j *journal.Journal) { j.Reason, j.Yielded = datapath.VswitchdDead, "none" },
		"rebooted": func(j *journal.Journal) { j.Reason = datapath.Rebooted },
	} {
		for _, phase := range []datapath.Phase{datapath.Detached, datapath.Restoring} {
			t.Run(what+" "+string(phase), func(t *testing.T) {
				n := detached(t, func(j *journal.Journal) { change(j); j.Phase = phase })
				hand, err := datapath.Open(n.journal, logr.Discard())
				if err == nil {
					err = hand.Restore(t.Context(), datapath.ByHand)
				}
				if err != nil {
					t.Fatal(err)
				}
				if tried, j := n.tries(t), n.uplink.Journal(); tried || j.Reason != datapath.ByHand || n.uplink.Yielded() ||
					n.uplink.Postponed() || !strings.Contains(n.Ready().Error(), datapath.ByHand) {
					t.Errorf("tried: %t; %s, %s, yielded %q, postponed %t: %v", tried, j.Phase, j.Reason, j.Yielded, n.uplink.Postponed(),
						n.Ready())
				}
			})
		}
	}
}
