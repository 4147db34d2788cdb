package ovsdb

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// The key is seen, whatever program sets it. ClearRestoreWait returns when ovs-vswitchd has applied it, and an error if
// it does not answer.
func TestRestoreWait(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	o.Ctl("set", "Open_vSwitch", ".", "other_config:theirs=1", "external_ids:theirs=1")
	seen := func(want RestoreWait) {
		t.Helper()
		waitChanged(t, db, func() bool { return mustObserve(t, db).RestoreWait == want }, "to see the key")
	}
	seen(RestoreWait{})
	must(t, db.SetRestoreWait(soon(t), "17.4"))
	seen(RestoreWait{Set: true, Ours: true, Restored: "17.4"})
	must(t, db.SetRestoreWait(soon(t), "17.5"))
	seen(RestoreWait{Set: true, Ours: true, Restored: "17.5"})
	o.Ctl("set", "Open_vSwitch", ".", "other_config:flow-restore-wait=true")
	seen(RestoreWait{Set: true, Restored: "17.5"})
	must(t, db.ClearRestoreWait(soon(t)))
	got := o.Ctl("get", "Open_vSwitch", ".", "other_config", "next_cfg", "cur_cfg")
	if lines := strings.Fields(got); lines[0] != `{theirs="1"}` || lines[1] != lines[2] {
		t.Errorf("after ClearRestoreWait other_config, next_cfg and cur_cfg are %q", lines)
	}
	if got := o.Ctl("get", "Open_vSwitch", ".", "external_ids:theirs"); strings.TrimSpace(got) != `"1"` {
		t.Errorf("the foreign key in external_ids is %s", got)
	}
	o.Vswitchd.Kill()
	// A call whose deadline passes before its transaction reports another error: the next one gets longer.
	for limit := 300 * time.Millisecond; ; limit *= 4 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err := db.ClearRestoreWait(ctx)
		cancel()
		if err != nil && strings.Contains(err.Error(), "ovs-vswitchd does not answer") {
			return
		}
		if err == nil || limit > patience {
			t.Fatalf("ClearRestoreWait without ovs-vswitchd, within %s: %v", limit, err)
		}
	}
}
