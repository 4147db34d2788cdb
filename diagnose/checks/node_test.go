package checks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The remedies are for the Open vSwitch that the node uses: the DaemonSet's, or the node's own; for both if that is
// unknown.
func TestStartOVS(t *testing.T) {
	for name, c := range map[string]struct {
		files    []string
		pod, own bool
	}{
		"DaemonSet": {[]string{"run"}, true, false},
		"own":       {[]string{"etc"}, false, true},
		"unknown":   {nil, true, true},
		"both":      {[]string{"run", "var"}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, sub := range c.files {
				if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, sub, "conf.db"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var text []string
			for _, r := range startOVS("ovs-vswitchd", filepath.Join(dir, "run"), filepath.Join(dir, "etc"), filepath.Join(dir, "var")) {
				text = append(text, r.Commands...)
			}
			all := strings.Join(text, "\n")
			if pod := strings.Contains(all, "name=fairlead-ovs"); pod != c.pod {
				t.Errorf("the DaemonSet is named: %t, want %t\n%s", pod, c.pod, all)
			}
			if own := strings.Contains(all, "systemctl"); own != c.own {
				t.Errorf("the node's own is named: %t, want %t\n%s", own, c.own, all)
			}
		})
	}
}
