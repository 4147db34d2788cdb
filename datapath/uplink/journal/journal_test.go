package journal

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/rows"
)

func example() *Journal {
	iface := hoststate.Iface{Name: "a:name of 15 ..", Index: 7}
	return &Journal{Version: Version, BootID: "b", Phase: Attaching, DB: rows.DB{RunDir: "/run/openvswitch"},
		Bridge: rows.Bridge{Name: rows.BridgeName}, NIC: hoststate.Link{Iface: iface, MTU: 1500,
			Rules: []hoststate.Object{{Kind: hoststate.Rule, Data: make([]byte, 12)}}}}
}

func TestJournalComesBack(t *testing.T) {
	j := example()
	text, err := Encode(j)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, j) {
		t.Errorf("got %+v, want %+v", got, j)
	}
	newer := strings.Replace(string(text), `"phase"`, `"futureField": {"a": [1]}, "phase"`, 1)
	newer = strings.Replace(newer, `"sum": "`+j.Sum, `"sum": "`, 1)
	if got, err = Parse([]byte(newer)); err != nil || got.Phase != j.Phase {
		t.Errorf("with a field of a newer program: %+v, %v", got, err)
	}
	if r := Read(filepath.Join(t.TempDir(), "none"), "b"); r.Newest != nil || r.Parts != nil || r.Err != nil {
		t.Errorf("without a file: %+v", r)
	}
}

// A damaged journal is not used to continue, but everything readable in it is available for a restore.
func TestDamagedJournal(t *testing.T) {
	whole, err := Encode(example())
	if err != nil {
		t.Fatal(err)
	}
	text := string(whole)
	change := func(old, now string) string { return strings.Replace(text, old, now, 1) }
	for what, bad := range map[string]struct {
		text  string
		rules int
	}{
		"empty":          {"", 0},
		"cut short":      {text[:strings.Index(text, `"neighbours"`)], 1},
		"version":        {change(`"version": 1`, `"version": 2`), 1},
		"other key":      {change(`"phase"`, `"faze"`), 1},
		"unknown phase":  {change(`"attaching"`, `"flying"`), 1},
		"a flipped byte": {change(`"attaching"`, `"attached" `), 1},
		"no time":        {change(`"written": "0001`, `"written": "oooo`), 1},
		"other type":     {change(`"mtu": 1500`, `"mtu": "much"`), 1},
		"unknown kind":   {change(`"kind": "rule"`, `"kind": "ruler"`), 0},
		"header short":   {change(`"AAAAAAAAAAAAAAAA"`, `"AAAA"`), 0},
		"attribute long": {change(`"AAAAAAAAAAAAAAAA"`, `"AAAAAAAAAAAAAAAA/////w=="`), 0},
		"no NIC":         {change(`"index": 7`, `"index": 0`), 1},
		"more after it":  {text + "{}", 1},
	} {
		if bad.text == text {
			t.Fatalf("%s: nothing was changed in\n%s", what, text)
		}
		j, err := Parse([]byte(bad.text))
		if err == nil {
			t.Errorf("%s: accepted as %+v", what, j)
		} else if len(j.NIC.Rules) != bad.rules || bad.text != "" && j.BootID != "b" {
			t.Errorf("%s: what can be read is %+v", what, j)
		}
	}
}

func FuzzJournal(f *testing.F) {
	text, err := Encode(example())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:len(text)/2])
	f.Fuzz(func(_ *testing.T, text []byte) {
		j, _ := Parse(text)
		for _, o := range j.NIC.Addresses {
			hoststate.AddressOn(o, j.NIC.Iface, hoststate.Iface{Name: "x", Index: 3}, 0, 0)
		}
		for _, o := range j.NIC.Routes {
			hoststate.RouteOn(o, j.NIC.Iface, hoststate.Iface{Name: "x", Index: 3}, 0)
		}
	})
}

// On attach, a step that was not recorded on disk is not started, and the copy in memory must not claim that it was. On
// restore, one of the two files is enough.
func TestCopyIsNotAheadOfTheDisk(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(file, "uplink.json") // the disk refuses it
	t.Cleanup(func() { os.RemoveAll(InMemory(filepath.Dir(file))) })
	j := example()
	j.Phase = Attaching
	onDisk, inMemory := Save(path, j)
	failed := (*Error)(nil)
	if !errors.As(onDisk, &failed) || inMemory != onDisk { //nolint:errorlint // the same one: the copy was not tried
		t.Errorf("on disk: %v; in memory: %v", onDisk, inMemory)
	}
	if text, err := os.ReadFile(InMemory(path)); err == nil {
		t.Errorf("the copy is %s", text)
	}
	for _, phase := range []Phase{Attached, Restoring, Detached} {
		j.Phase = phase
		if onDisk, inMemory = Save(path, j); onDisk == nil || inMemory == onDisk { //nolint:errorlint // see above
			t.Errorf("%s: the copy was not tried: on disk: %v; in memory: %v", phase, onDisk, inMemory)
		}
	}
}
