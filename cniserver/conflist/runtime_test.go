package conflist

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
)

// A plugin between the runtime and Fairlead that supports cniVersions, as libcni 1.2 does, must not find a version
// there that the runtime does not support.
func TestRuntimeDecidesVersions(t *testing.T) {
	for runtime, newest := range map[string]string{
		"containerd://2.0.0":      "1.1.0",
		"containerd://2.0.0-rc.3": "1.1.0",
		"containerd://2.1.4-k3s1": "1.1.0",
		"containerd://v2.2.0":     "1.1.0",
		"cri-o://1.32.0":          "1.1.0",
		"cri-o://1.36.1":          "1.1.0",
		"containerd://1.6.20~ds1": "1.0.0",
		"containerd://1.7.29":     "1.0.0",
		"cri-o://1.30.6":          "1.0.0",
		"docker://27.5.1":         "1.0.0",
		"containerd://Unknown":    "1.0.0",
		"containerd":              "1.0.0",
		"":                        "1.0.0",
	} {
		t.Run(runtime, func(t *testing.T) {
			c := node(t, map[string]string{"portmap": allVersions, "bandwidth": allVersions})
			c.Runtime = runtime
			content, _, warnings := write(t, c)
			wantWarnings(t, warnings)
			if l := parse(t, c); l.CNIVersion != newest || len(l.Plugins) != 3 {
				t.Errorf("a runtime that reads cniVersions uses CNI %s, want %s:\n%s", l.CNIVersion, newest, content)
			}
			if got := strings.Contains(content, "cniVersions"); got != (newest == "1.1.0") {
				t.Errorf("cniVersions: %t\n%s", got, content)
			}
		})
	}
}

// An upgrade or downgrade of the runtime takes effect at the next Write.
func TestRuntimeIsUpgraded(t *testing.T) {
	c := node(t, map[string]string{"portmap": allVersions, "bandwidth": allVersions})
	for _, s := range []struct{ runtime, newest string }{
		{"containerd://1.7.29", "1.0.0"}, {"containerd://2.1.4", "1.1.0"}, {"containerd://1.7.29", "1.0.0"}} {
		c.Runtime = s.runtime
		if _, changed, _ := write(t, c); !changed {
			t.Errorf("%s: not rewritten", s.runtime)
		}
		if l, err := libcni.NetworkConfFromFile(c.Path); err != nil || l.CNIVersion != s.newest {
			t.Errorf("%s: CNI %+v, %v", s.runtime, l, err)
		}
	}
}
