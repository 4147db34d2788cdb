package uplink

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// damages are changes of a journal's text. nil: the file is gone.
func damages() map[string]func(text []byte) []byte {
	replace := func(old, now string) func([]byte) []byte {
		return func(text []byte) []byte { return bytes.Replace(text, []byte(old), []byte(now), 1) }
	}
	return map[string]func([]byte) []byte{
		"a field of a newer program": replace(`"phase"`, `"futureField": true, "phase"`),
		"a newer version":            replace(`"version": 1`, `"version": 2`),
		"of another boot": func(text []byte) []byte {
			j, err := journal.Parse(text)
			if err == nil {
				j.BootID, j.Bridge.BootID = otherBoot, otherBoot
				text, err = journal.Encode(j)
			}
			if err != nil {
				panic(err)
			}
			return text
		},
		"truncated in the addresses": func(text []byte) []byte {
			return text[:min(len(text)-20, bytes.Index(text, []byte(`"addresses"`))+200)]
		},
		"truncated at the start": func(text []byte) []byte { return text[:40] },
		"two bytes flipped": func(text []byte) []byte {
			text = bytes.Clone(text)
			i := bytes.Index(text, []byte(`"addresses"`))
			text[i] ^= 0x04          // syntax
			text[len(text)/2] ^= 0x1 // and perhaps a value
			return text
		},
		"a value flipped":        replace(hostIP, "192.0.2.66"),
		"the NIC's name flipped": replace(`"name": "eth0"`, `"name": "et\"0"`),
		"the mode flipped":       replace(`"mode": "steer"`, `"mode": "ste%r"`),
		"empty":                  func([]byte) []byte { return []byte{} },
		"gone":                   func([]byte) []byte { return nil },
	}
}

// damage damages the journal on disk; with both, it also removes the copy in memory.
func (f *fixture) damage(how func([]byte) []byte, both bool) {
	f.t.Helper()
	text, err := os.ReadFile(f.journal)
	if err == nil {
		err = os.Remove(f.journal)
		if now := how(text); err == nil && now != nil {
			err = os.WriteFile(f.journal, now, 0o600)
		}
	}
	if err == nil && both {
		err = os.Remove(journal.InMemory(f.journal))
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// With a journal that is damaged, missing, or written by a newer version, the node gets back all that it had, by a
// restore, a yield, and the next agent, with or without the copy in memory.
func TestRootDamagedJournal(t *testing.T) {
	for name, how := range damages() {
		if ovstest.UnderTest(t) == ovstest.System && name != "gone" && name != "truncated in the addresses" {
			continue // reading does not depend on the datapath; recovery without the journal does
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel() // mostly waits for Open vSwitch and the kernel
			f := setupSteer(t, simple)
			f.before = f.state()
			for _, f.mode = range []string{api.UplinkBridge, api.UplinkSteer} {
				f.damages(name, how)
			}
		})
	}
}

func (f *fixture) damages(name string, how func([]byte) []byte) {
	f.t.Helper()
	f.nextAgent()
	f.attached = f.state()
	for _, both := range []bool{false, true} {
		for _, event := range damageEvents() {
			if !both && event.name != "the next agent" {
				continue // the copy is intact: TestRootDiskFaults covers the events
			}
			if event.name == "yield" && f.mode == api.UplinkSteer {
				continue // the host has its NIC
			}
			if f.nextAgent(); f.t.Failed() {
				return
			}
			event.do(f, func() { f.damage(how, both) })
			f.checkAfter(event.end, strings.Join([]string{f.mode, name, event.name}, ", then "))
			f.steersOnly(event.end)
		}
	}
	f.must(f.restore())
}

// steersOnly checks that programs of mode steer are present only when desired.
func (f *fixture) steersOnly(end Phase) {
	f.t.Helper()
	if s := f.status(); s.Phase != end || s.Next != "" || end == Attached && s.Mode != f.mode {
		f.t.Errorf("%s, want %s: the status is %+v", f.mode, end, s)
	}
	if _, err := os.Stat(f.pins); (err == nil) != (end == Attached && f.mode == api.UplinkSteer) {
		f.t.Errorf("%s, %s: the programs' pins: %v", f.mode, end, err)
	}
}

// A process that was killed at any step of mode steer, and whose journal is gone or unreadable, leaves nothing that the
// next restore, or the next agent, does not find.
func TestRootSteerDamagedJournalAtEveryStep(t *testing.T) {
	ovstest.UserspaceOnly(t, "what is found without the journal is tried there by TestRootDamagedJournal")
	for i, op := range []string{"attach", "roll back", "restore"} {
		t.Run(op, func(t *testing.T) {
			t.Parallel() // mostly waits for Open vSwitch and the kernel
			f := setupSteer(t, simple)
			f.before = f.state()
			f.nextAgent()
			f.attached = f.state()
			for n := 1; ; n++ {
				if f.goTo(op); t.Failed() {
					return
				}
				what := f.run(op, n)
				if what == "" {
					return
				}
				name := []string{"gone", "truncated at the start", "the mode flipped"}[(i+n)%3]
				f.damage(damages()[name], true)
				end := Detached
				if n%2 == 0 {
					end = Attached
					f.nextAgent()
				} else {
					f.must(f.restore())
				}
				f.checkAfter(end, fmt.Sprintf("killed after %q, %s", what, name))
				f.steersOnly(end)
			}
		})
	}
}

type damageEvent struct {
	name string
	do   func(f *fixture, damage func())
	end  Phase
}

func damageEvents() []damageEvent {
	return []damageEvent{
		{"restore", func(f *fixture, damage func()) {
			damage()
			if err := f.restore(); err != nil {
				f.t.Errorf("restore: %v", err)
			}
		}, Detached},
		{"yield", func(f *fixture, damage func()) {
			damage()
			f.ovs.Vswitchd.Kill()
			f.yields()
			f.ovs.Vswitchd.Start()
		}, Detached},
		{"the next agent", func(f *fixture, damage func()) {
			damage()
			f.nextAgent()
		}, Attached},
		{"exit --cleanup while an agent runs", func(f *fixture, damage func()) {
			u := f.open()
			damage()
			f.exitCleanup()
			f.node.Must(func() error {
				_, err := u.Repair(context.Background())
				return err
			})
			if r := journal.Read(f.journal, u.bootID); !r.Both || r.Err != nil {
				f.t.Errorf("the journal was not written again: %+v", r)
			}
		}, Attached},
	}
}
