package nat

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/nstest"
)

// refuse has iptables-restore of IPv4 refuse what has a text, as it does where the kernel lacks a match or a table.
func refuse(t *testing.T, text string) {
	t.Helper()
	real, err := exec.LookPath("iptables-restore")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\ninput=$(cat)\ncase $input in *'%s'*) echo refused >&2; exit 2;; esac\n"+
		"echo \"$input\" | %s \"$@\"\n", text, real)
	if err := os.WriteFile(filepath.Join(dir, "iptables-restore"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// What the kernel refuses of a chain is missing alone: the other rules of the chain, the other chains and the other
// family are in place, and it is said what is missing. Without what drops nothing is let through.
func TestRootRulesThatAreRefused(t *testing.T) {
	for text, c := range map[string]struct{ says, there, missing string }{
		"addrtype": {"addrtype", "-A FAIRLEAD-FORWARD -i fairlead-gw0 -p udp -m udp --dport 6081 -j DROP\n" +
			"-A FAIRLEAD-FORWARD -i fairlead-gw0 -j ACCEPT\nMASQUERADE\n--notrack", "addrtype"},
		"*mangle": {"mangle", "--notrack", "MASQUERADE"},
		"*nat":    {"table nat", "--notrack\naddrtype\n-A FAIRLEAD-FORWARD -i fairlead-gw0 -j ACCEPT", "MASQUERADE"},
	} {
		t.Run(text, func(t *testing.T) {
			withBackend(t, "nft", func(t *testing.T) {
				node := nstest.New(t)
				refuse(t, text)
				for range 2 { // also when it is tried again
					err := node.Do(func() error { _, err := new(Tables).Apply(t.Context(), withTunnel()); return err })
					if err == nil || !strings.Contains(err.Error(), c.says) {
						t.Errorf("%v, want %s", err, c.says)
					}
				}
				v4, v6, _ := strings.Cut(dump(node), "ip6tables raw")
				for want := range strings.SplitSeq(c.there, "\n") {
					if !strings.Contains(v4, want) {
						t.Errorf("there is no %q in\n%s", want, v4)
					}
				}
				if strings.Contains(v4, c.missing) || !strings.Contains(v6, c.missing) {
					t.Errorf("there is %q, or not in\n%s", c.missing, v6)
				}
			})
		})
	}
}
