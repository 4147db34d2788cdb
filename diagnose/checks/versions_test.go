package checks

import (
	"testing"

	"github.com/fairlead-cni/fairlead/diagnose/versions"
)

// Only versions known to be too old are a finding, not untested ones.
func TestTooOld(t *testing.T) {
	for version, want := range map[string]string{"2.17.9": "Open vSwitch 2.17.9 is too old: Fairlead supports 3.1 and newer",
		"3.1.0": "", "3.7.1": "", "unknown": ""} {
		got := ""
		for _, f := range tooOld(CheckOVS, versions.OpenVSwitch, version, nil, "ovs-appctl version") {
			got += f.Cause
		}
		if got != want {
			t.Errorf("%s: %q, want %q", version, got, want)
		}
	}
	for _, version := range []string{"5.4.0", "6.1.0"} {
		if found := tooOld(CheckVersions, versions.Linux, version, nil, ""); len(found) > 0 {
			t.Errorf("Linux %s: %v", version, found)
		}
	}
}
