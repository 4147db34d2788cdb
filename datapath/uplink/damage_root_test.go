package uplink

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// damages are what happens to a journal's text. nil: the file is gone.
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
		"truncated in the addresses": func(text []byte) []byte { return text[:bytes.Index(text, []byte(`"addresses"`))+200] },
		"truncated at the start":     func(text []byte) []byte { return text[:40] },
		"two bytes flipped": func(text []byte) []byte {
			text = bytes.Clone(text)
			i := bytes.Index(text, []byte(`"addresses"`))
			text[i] ^= 0x04          // syntax
			text[len(text)/2] ^= 0x1 // and perhaps a value
			return text
		},
		"a value flipped": replace(hostIP, "192.0.2.66"),
		"empty":           func([]byte) []byte { return []byte{} },
		"gone":            func([]byte) []byte { return nil },
	}
}

// damage does that to the journal on disk, and to its copy in memory, or takes that away.
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

// With a journal that is damaged, missing, or of a newer program the node gets all that it had back, by a restore, a
// yield, and the next agent, whether or not there is the copy in memory.
func TestRootDamagedJournal(t *testing.T) {
	for name, how := range damages() {
		if ovstest.UnderTest(t) == ovstest.System && name != "gone" && name != "truncated in the addresses" {
			continue // what can be read is no matter of the datapath; what is found without it is
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of the time is Open vSwitch's and the kernel's, waiting
			f := setup(t, simple, noDAD()...)
			f.before = f.state()
			f.nextAgent()
			f.attached = f.state()
			for _, both := range []bool{false, true} {
				for _, event := range damageEvents() {
					if !both && event.name != "the next agent" {
						continue // the copy is whole: TestRootDiskFaults has the events
					}
					if f.nextAgent(); t.Failed() {
						return
					}
					event.do(f, func() { f.damage(how, both) })
					f.checkAfter(event.end, strings.Join([]string{name, event.name}, ", then "))
				}
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
				_, err := u.Mend(context.Background())
				return err
			})
			if r := journal.Read(f.journal, u.bootID); !r.Both || r.Err != nil {
				f.t.Errorf("the journal was not written again: %+v", r)
			}
		}, Attached},
	}
}
