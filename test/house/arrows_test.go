package house

import (
	"slices"
	"strings"
	"testing"
)

// layers are the packages of the repository that those of each top-level folder may import. Every package may import
// its own folder.
var layers = map[string][]string{
	"api":        {},
	"internal":   {},
	"openflow":   {"api"},
	"datapath":   {"api"},
	"cniserver":  {"api"},
	"ipam":       {"api"},
	"policy":     {"api"},
	"config":     {"api"},
	"kube":       {"policy", "api"},
	"diagnose":   {"kube", "cniserver", "datapath", "openflow", "ipam", "policy", "api"},
	"migrate":    {"kube", "ipam", "api"},
	"agent":      {"diagnose", "kube", "cniserver", "datapath", "openflow", "ipam", "policy", "api"},
	"controller": {"ipam", "api"},
	"build":      {},
	"ctl": {"agent", "controller", "diagnose", "migrate", "kube", "config", "cniserver", "datapath", "openflow", "ipam",
		"policy", "api"},
	"cmd": {"ctl", "agent", "controller", "diagnose", "migrate", "kube", "config", "cniserver", "datapath", "openflow", "ipam",
		"policy", "api"},
	"test": {"build", "cmd", "ctl", "agent", "controller", "diagnose", "migrate", "kube", "config", "cniserver", "datapath",
		"openflow", "ipam", "policy", "api"},
}

// Imports point down: cmd -> agent -> diagnose -> kube -> api, and from the first two to the five siblings cniserver,
// datapath, openflow, ipam and policy.
func TestImportsPointDown(t *testing.T) {
	files, _ := goFiles(t)
	for _, f := range files {
		from, _, _ := strings.Cut(f.dir, "/")
		below, known := layers[from]
		if !known {
			t.Errorf("%s: the folder %s has no layer: say in test/house what it may import", f.path, from)
		}
		for _, path := range f.imports() {
			own, ours := strings.CutPrefix(path, module+"/")
			to, _, _ := strings.Cut(own, "/")
			harness := f.test && to == "test" // tests of every layer share the harnesses
			library := to == "internal"       // imports no package of ours, and is independent of what Fairlead does
			if !ours || to == from || slices.Contains(below, to) || harness || library {
				continue
			}
			t.Errorf("%s imports %s: imports point down, cmd -> agent -> diagnose -> {cniserver, datapath, openflow, ipam, "+
				"policy} -> api, and the five in braces do not know each other. What they share is a value in api, or one that "+
				"agent hands over", f.path, own)
		}
	}
}

// floors are the packages in agent/ that each package there may import. Each package there is listed.
func floors() map[string][]string {
	return map[string][]string{
		"desired":     {},
		"signal":      {},
		"services":    {},
		"policies":    {},
		"denials":     {},
		"rundir":      {},
		"attachments": {},
		"status":      {"desired"},
		"uplink":      {"desired", "signal", "status"},
		"events":      {"desired", "signal", "status"},
		"apply":       {"denials", "desired", "policies", "services", "signal", "status"},
		"node":        {"apply", "attachments", "desired", "events", "rundir", "signal", "status", "uplink"},
		"addresses":   {"attachments", "events", "signal", "status"},
		"pods":        {"addresses", "attachments", "node", "signal", "status"},
		"reach":       {"desired", "status"},
		"uninstall":   {"reach", "rundir"},
	}
}

// Inside agent/ no import points up either.
func TestImportsInsideTheAgentPointDown(t *testing.T) {
	files, _ := goFiles(t)
	for _, f := range files {
		room, inside := strings.CutPrefix(f.dir, "agent/")
		below, known := floors()[room]
		if inside && !known {
			t.Errorf("%s: the room %s has no floor: say in test/house what it may import", f.path, f.dir)
		}
		for _, path := range f.imports() {
			to, ours := strings.CutPrefix(path, module+"/agent/")
			if inside && ours && to != room && !slices.Contains(below, to) {
				t.Errorf("%s imports agent/%s: inside agent/ imports point down, too; what a lower room needs is handed "+
					"to it", f.path, to)
			}
		}
	}
}

// The OpenFlow library is imported only by openflow/codec*.go, which make the messages, and by openflow/internal.
func TestOneDoorToTheOpenFlowLibrary(t *testing.T) {
	files, _ := goFiles(t)
	seen := false
	for _, f := range files {
		door := strings.HasPrefix(f.dir, "openflow/internal/") || strings.HasPrefix(f.path, "openflow/codec")
		for _, path := range f.imports() {
			if !strings.HasPrefix(path, "antrea.io/") {
				continue
			}
			seen = true
			if !door {
				t.Errorf("%s imports %s: only openflow/codec*.go and openflow/internal do. The tables are values, so that they "+
					"can be tested without a switch and the library can be replaced", f.path, path)
			}
		}
	}
	if !seen {
		t.Error("nothing imports the OpenFlow library any more: take this rule away")
	}
}

// A package name without a meaning collects everything.
func TestNoDrawerPackages(t *testing.T) {
	drawers := []string{"util", "utils", "common", "types", "helper", "helpers", "misc", "base", "shared", "lib",
		"core", "models", "interfaces", "constants"}
	files, _ := goFiles(t)
	for _, f := range files {
		name := strings.TrimSuffix(f.syntax.Name.Name, "_test")
		if slices.Contains(drawers, name) {
			t.Errorf("%s: package %s: name a package after what it provides, or put the code where it is used",
				f.path, name)
		}
	}
}
