package ovsdb

import (
	"maps"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// However a pod's record is damaged, its port is kept, and its address counts as in use: either the record is read with
// the addresses that were written, or the port is among the broken ones, which are never pruned, with a reason.
func TestDamagedRecords(t *testing.T) {
	const newer = recordPrefix + "of-a-newer-version"
	cuts := map[string]func(ids map[string]string) (reason string){
		"newer unknown key": func(ids map[string]string) string { ids[newer] = "1"; return "" },
		"newer unknown value of a key": func(ids map[string]string) string {
			ids[addrsKey] += " vrf:blue/10.0.1.9/24"
			return addrsKey
		},
		"truncated address": func(ids map[string]string) string { ids[addrsKey] = "10.0.1.1"; return addrsKey },
		"truncated MAC":     func(ids map[string]string) string { ids[macKey] = "02:00:00"; return macKey },
		"no key of addresses": func(ids map[string]string) string {
			delete(ids, addrsKey)
			return addrsKey
		},
		"truncated to some keys": func(ids map[string]string) string {
			maps.DeleteFunc(ids, func(k, _ string) bool { return k > recordPrefix+"i" })
			return "is missing"
		},
		"empty values": func(ids map[string]string) string {
			for k := range ids {
				if k != markKey {
					ids[k] = ""
				}
			}
			return "is empty"
		},
		"the mark alone": func(ids map[string]string) string {
			maps.DeleteFunc(ids, func(k, _ string) bool { return k != markKey })
			return "is missing"
		},
		"another port's": func(ids map[string]string) string {
			maps.Copy(ids, encode(attachment("z")))
			return `port "flz"`
		},
	}
	for name, damage := range cuts {
		for _, a := range []api.Attachment{attachment("a"), bridged("a")} {
			ids := encode(a)
			reason := damage(ids)
			got, err := decode(a.HostIf, ids)
			switch {
			case reason == "" && (err != nil || !got.Equal(a)):
				t.Errorf("%s, bridged %t: %+v, %v, want %+v", name, a.Bridged, got, err, a)
			case reason != "" && (err == nil || !strings.Contains(err.Error(), reason)):
				t.Errorf("%s, bridged %t: %+v, %v, want an error with %q", name, a.Bridged, got, err, reason)
			}
		}
	}
}

// A port without the mark is not Fairlead's, whatever its record says, and stays. One with a key of a newer version is
// a pod's like any other.
func TestForeignRecords(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	d := desired("a", "b")
	ensureNow(t, db, d)
	must(t, db.WaitOFPorts(soon(t), d.names()...))
	o.Ctl("remove", "Port", "fla", "external_ids", markKey, "--",
		"set", "Port", "flb", "external_ids:fairlead-of-a-newer-version=1")
	waitChanged(t, db, func() bool { return len(mustObserve(t, db).Foreign) == 1 }, "to see the port without a mark")
	got := mustObserve(t, db)
	if len(got.Pods) != 1 || got.Pods[0].HostIf != "flb" || len(got.Broken) != 0 {
		t.Errorf("observed %+v", got)
	}
	pruneNow(t, db, desired())
	waitChanged(t, db, func() bool { return len(mustObserve(t, db).Pods) == 0 }, "to see flb pruned")
	if got := mustObserve(t, db); len(got.Foreign) != 1 || got.Foreign[0] != "fla" {
		t.Errorf("the port without a mark is pruned: %+v", got)
	}
}
