package uplink

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/rows"
)

func journal() *Journal {
	place := hoststate.Place{Name: "a:name of 15 ..", Index: 7}
	return &Journal{Version: version, BootID: "b", Phase: Attaching, DB: rows.DB{RunDir: "/run/openvswitch"},
		Bridge: rows.Bridge{Name: BridgeName}, NIC: hoststate.Link{Place: place, MTU: 1500,
			Rules: []hoststate.Object{{Kind: hoststate.Rule, Data: make([]byte, 12)}}}}
}

func TestJournalComesBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "uplink.json")
	j := journal()
	if err := j.write(path); err != nil {
		t.Fatal(err)
	}
	got, err := readJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	j.Written, got.Written = got.Written, j.Written.Round(0)
	j.Written = got.Written
	if !reflect.DeepEqual(got, j) {
		t.Errorf("got %+v, want %+v", got, j)
	}
	if none, err := readJournal(path + "x"); none != nil || err != nil {
		t.Errorf("without a file: %v, %v", none, err)
	}
}

// A journal that is not whole is refused: what is missing would be lost on the node.
func TestJournalIsReadStrictly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "uplink.json")
	if err := journal().write(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for what, bad := range map[string]string{
		"empty":          "",
		"cut short":      string(text[:len(text)-20]),
		"version":        strings.Replace(string(text), `"version": 1`, `"version": 2`, 1),
		"unknown key":    strings.Replace(string(text), `"phase"`, `"faze"`, 1),
		"unknown phase":  strings.Replace(string(text), `"attaching"`, `"flying"`, 1),
		"unknown kind":   strings.Replace(string(text), `"kind": "rule"`, `"kind": "ruler"`, 1),
		"header short":   strings.Replace(string(text), `"AAAAAAAAAAAAAAAA"`, `"AAAA"`, 1),
		"attribute long": strings.Replace(string(text), `"AAAAAAAAAAAAAAAA"`, `"AAAAAAAAAAAAAAAA/////w=="`, 1),
		"no NIC":         strings.Replace(string(text), `"index": 7`, `"index": 0`, 1),
		"more after it":  string(text) + "{}",
	} {
		if bad == string(text) {
			t.Fatalf("%s: nothing was changed in\n%s", what, text)
		}
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if j, err := readJournal(path); err == nil {
			t.Errorf("%s: accepted as %+v", what, j)
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v does not name the file", what, err)
		}
	}
}

func FuzzJournal(f *testing.F) {
	path := filepath.Join(f.TempDir(), "seed.json")
	if err := journal().write(path); err != nil {
		f.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "uplink.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		j, err := readJournal(path)
		if err != nil {
			return
		}
		u := Uplink{journal: j}
		u.addressesOn(j.NIC.Place, 0)
		u.routesOn(hoststate.Place{Name: "x", Index: 3})
	})
}
