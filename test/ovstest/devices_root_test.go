package ovstest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A datapath with devices runs inside the requested network namespace: a veth end that exists only there becomes a
// port, and the bridge's own device appears there and not in the namespace of the test.
func TestRootDatapathOfANamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to make a network namespace")
	}
	ns := fmt.Sprintf("ovstest-%d", os.Getpid())
	ip(t, "netns", "add", ns)
	t.Cleanup(func() { ip(t, "netns", "del", ns) })
	ip(t, "-n", ns, "link", "add", "v0", "type", "veth", "peer", "name", "v1")

	o := Start(t, Options{Datapath: UnderTest(t), Netns: "/run/netns/" + ns})
	o.AddBridge("br-ovstest", Port{Name: "v0", OFPort: 4}, Port{Name: "in0", Type: "internal"})
	if got := o.OFPort("v0"); got != 4 {
		t.Errorf("v0 has OpenFlow port %d, want 4", got)
	}
	if links := ip(t, "-n", ns, "-br", "link"); !strings.Contains(links, "in0") {
		t.Errorf("the namespace has no in0:\n%s", links)
	}
	if links := ip(t, "-br", "link"); strings.Contains(links, "br-ovstest") {
		t.Errorf("br-ovstest leaked into the namespace of the test:\n%s", links)
	}
}

func ip(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
