package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/nstest"
)

// The variant in which kubelet has its chain is used, otherwise the one with more rules, otherwise nft; the choice is
// kept.
func TestRootFormOfIPTables(t *testing.T) {
	const (
		nft, legacy = "nf_tables", "legacy"
		hint        = " -t mangle -N KUBE-IPTABLES-HINT"
		rule        = " -A FORWARD -s 192.0.2.1 -j ACCEPT"
	)
	for name, c := range map[string]struct {
		before []string
		env    string
		want   string
		kept   bool
	}{
		"nothing":                 {nil, "", nft, false},
		"kubelet, nft":            {[]string{"iptables-nft" + hint, "iptables-legacy" + rule}, "", nft, true},
		"kubelet, legacy":         {[]string{"iptables-legacy" + hint, "iptables-nft" + rule}, "", legacy, true},
		"kubelet, IPv6 alone":     {[]string{"ip6tables-legacy" + hint}, "", legacy, true},
		"more rules, legacy":      {[]string{"iptables-legacy" + rule}, "", legacy, true},
		"more rules, nft":         {[]string{"ip6tables-nft -A INPUT -j ACCEPT"}, "", nft, true},
		"our own do not count":    {[]string{"iptables-legacy -N FAIRLEAD-FORWARD", "iptables-legacy -A FORWARD -j FAIRLEAD-FORWARD"}, "", nft, false},
		"the environment decides": {[]string{"iptables-nft" + hint}, "legacy", legacy, false},
	} {
		t.Run(name, func(t *testing.T) {
			node, dir := nstest.New(t), t.TempDir()
			kept, program := filepath.Join(dir, "kept"), filepath.Join(dir, "iptables")
			if err := os.WriteFile(program, []byte(IPTables), 0o755); err != nil {
				t.Fatal(err)
			}
			for _, command := range c.before {
				node.Exec(strings.Fields(command)...)
			}
			version := func() string {
				return node.Exec("env", "FAIRLEAD_IPTABLES="+c.env, "FAIRLEAD_IPTABLES_KEPT="+kept, program, "--version")
			}
			for range 2 {
				if got := version(); !strings.Contains(got, c.want) {
					t.Errorf("%s, want %s", got, c.want)
				}
			}
			if _, err := os.Stat(kept); (err == nil) != c.kept {
				t.Errorf("kept: %v, want %t", err, c.kept)
			}
			// It passes its arguments and errors on.
			node.Exec("env", "FAIRLEAD_IPTABLES="+c.env, "FAIRLEAD_IPTABLES_KEPT="+kept, program, "-N", "PASSED-ON")
			form := map[string]string{nft: "nft", legacy: "legacy"}[c.want]
			if got := node.Exec("iptables-"+form, "-S"); !strings.Contains(got, "PASSED-ON") {
				t.Errorf("no chain in\n%s", got)
			}
		})
	}
	node := nstest.New(t)
	out := node.Exec("sh", "-c", `FAIRLEAD_IPTABLES=new sh -c "$0" iptables 2>&1; echo $?`, IPTables)
	if !strings.Contains(out, `it can be nft, legacy or auto`) || !strings.HasSuffix(out, "\n2\n") {
		t.Errorf("a wrong setting: %s", out)
	}
}
