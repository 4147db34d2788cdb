package nat

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

var dual = []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("fd00:0:0:1::/64")}

func desired() Desired {
	return Desired{Gateway: "fairlead-gw0", PodCIDRs: dual, Masquerade: true, RandomFully: true}
}

func withTunnel() Desired {
	d := desired()
	d.Tunnel, d.TunnelEnd = Tunnel{"udp", 6081}, TunnelEnd{"eth0", netip.MustParseAddr("192.0.2.2")}
	return d
}

// need skips the test where iptables is missing.
func need(t *testing.T) {
	t.Helper()
	nstest.Need(t)
	for _, f := range families() {
		if _, err := exec.LookPath(f.program); err != nil {
			t.Skipf("SKIPPED, NOTHING WAS TESTED: needs %s", f.program)
		}
	}
}

// backends runs a test on both back ends of iptables, selected by a directory at the head of PATH, with an xtables lock
// of its own.
func backends(t *testing.T, test func(*testing.T)) {
	for _, backend := range []string{"nft", "legacy"} {
		t.Run(backend, func(t *testing.T) { withBackend(t, backend, test) })
	}
}

// withBackend runs test with one back end of iptables.
func withBackend(t *testing.T, backend string, test func(*testing.T)) {
	need(t)
	multi, err := exec.LookPath("xtables-" + backend + "-multi")
	if err != nil {
		t.Skipf("SKIPPED, NOTHING WAS TESTED: needs %v", err)
	}
	dir := t.TempDir()
	for _, f := range families() {
		for _, name := range []string{f.program, f.restore} {
			if err := os.Symlink(multi, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(dir, "lock"))
	test(t)
}

// countStarts returns a function that returns how many iptables processes were started since its last call.
func countStarts(t *testing.T) func() int {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	for _, f := range families() {
		for _, name := range []string{f.program, f.restore} {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Fatal(err)
			}
			script := fmt.Sprintf("#!/bin/sh\necho >>%s\nexec %s \"$@\"\n", log, path)
			if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() int {
		lines, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(log, 0); err != nil {
			t.Fatal(err)
		}
		return len(lines)
	}
}

func apply(t *testing.T, node *nstest.NS, d Desired) []string {
	t.Helper()
	var changes []string
	node.Must(func() (err error) { changes, err = new(Tables).Apply(t.Context(), d); return err })
	return changes
}

// dump is the output of iptables and ip6tables for all rules.
func dump(node *nstest.NS) string {
	var out strings.Builder
	for _, f := range families() {
		for _, table := range []string{"raw", "mangle", "nat", "filter"} {
			out.WriteString(f.program + " " + table + "\n" + node.Exec(f.program, "-w", "5", "-t", table, "-S") + "\n")
		}
	}
	return out.String()
}

func TestRootApplyIsIdempotent(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	backends(t, func(t *testing.T) {
		node := nstest.New(t)
		if changes := apply(t, node, desired()); len(changes) == 0 {
			t.Error("the first Apply changed nothing")
		}
		got := dump(node)
		for _, rule := range []string{
			"-A FAIRLEAD-POSTROUTING -s 10.0.1.0/24 ! -o fairlead-gw0 -j MASQUERADE --random-fully",
			"-A FAIRLEAD-POSTROUTING -s fd00:0:0:1::/64 ! -o fairlead-gw0 -j MASQUERADE --random-fully",
			"-A POSTROUTING -j FAIRLEAD-POSTROUTING",
			"-A FAIRLEAD-FORWARD -i fairlead-gw0 -j ACCEPT",
			"-A FORWARD -j FAIRLEAD-FORWARD",
		} {
			if !strings.Contains(got, rule+"\n") {
				t.Errorf("no rule %q in\n%s", rule, got)
			}
		}
		start := time.Now()
		if changes := apply(t, node, desired()); len(changes) != 0 {
			t.Errorf("the second Apply changed %q", changes)
		}
		t.Logf("an Apply without changes takes %v", time.Since(start))
		for tunnel, rule := range map[Tunnel]string{{"udp", 6081}: "-p udp -m udp --dport 6081",
			{"tcp", 7471}: "-p tcp -m tcp --dport 7471", {Protocol: "gre"}: "-p gre"} {
			d := desired()
			d.Tunnel, d.TunnelEnd = tunnel, TunnelEnd{"eth0", netip.MustParseAddr("192.0.2.2")}
			apply(t, node, d)
			if changes := apply(t, node, d); len(changes) != 0 {
				t.Errorf("the second Apply with tunnel %v changed %q", tunnel, changes)
			}
			got := strings.ReplaceAll(dump(node), "-p 47", "-p gre")
			if !strings.Contains(got, "-A FAIRLEAD-FORWARD -i fairlead-gw0 "+rule+" -j DROP\n") ||
				!strings.Contains(got, "-A FAIRLEAD-POSTROUTING -s 10.0.1.0/24 "+rule+" -j DROP\n") ||
				!strings.Contains(got, "-A FAIRLEAD-INPUT -d 192.0.2.2/32 -i eth0 "+rule+" -j ACCEPT\n") ||
				!strings.Contains(got, "-A FAIRLEAD-PREROUTING -d 192.0.2.2/32 -i eth0 "+rule+" -j CT --notrack\n") {
				t.Errorf("no rule for tunnel %v in\n%s", tunnel, got)
			}
		}
	})
}

// Manual changes are reverted, and the node's other rules stay.
func TestRootApplyRevertsDrift(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	backends(t, func(t *testing.T) {
		node := nstest.New(t)
		node.Exec("iptables", "-A", "FORWARD", "-s", "192.0.2.66/32", "-j", "DROP")
		node.Exec("iptables", "-A", "FORWARD", "-m", "comment", "--comment", "the end of it", "-j", "REJECT")
		node.Exec("iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "192.0.2.66/32", "-j", "RETURN")
		node.Exec("iptables", "-A", "INPUT", "-i", "eth0", "-j", "REJECT")
		apply(t, node, withTunnel())
		want := dump(node)
		for _, drift := range []string{
			"iptables -t nat -F FAIRLEAD-POSTROUTING",
			"iptables -t nat -D POSTROUTING -j FAIRLEAD-POSTROUTING",
			"iptables -t nat -A POSTROUTING -j FAIRLEAD-POSTROUTING",
			"iptables -t nat -A FAIRLEAD-POSTROUTING -s 10.9.9.9/32 -m comment --comment foreign -j ACCEPT",
			"iptables -t nat -R FAIRLEAD-POSTROUTING 2 -s 10.0.1.0/24 -j MASQUERADE",
			"iptables -t nat -A POSTROUTING -s 10.9.9.9/32 -m comment --comment two_words -j FAIRLEAD-POSTROUTING",
			"iptables -t filter -F FAIRLEAD-FORWARD",
			"iptables -A FORWARD -j FAIRLEAD-FORWARD",
			"iptables -t mangle -I FORWARD -j FAIRLEAD-FORWARD",
			"iptables -A FAIRLEAD-FORWARD -i fairlead-gw0 -p udp -m udp --dport 6081 -j DROP", // of older versions
			"ip6tables -t mangle -F FAIRLEAD-FORWARD",
			"ip6tables -t nat -F FAIRLEAD-POSTROUTING",
			"ip6tables -t filter -D FORWARD -j FAIRLEAD-FORWARD",
			"iptables -D INPUT -j FAIRLEAD-INPUT",
			"iptables -A INPUT -j FAIRLEAD-INPUT",
			"iptables -F FAIRLEAD-OUTPUT",
			"iptables -t raw -F",
			"iptables -t raw -D OUTPUT -j FAIRLEAD-OUTPUT",
		} {
			node.Exec(strings.Fields(drift)...)
			if got := dump(node); got == want {
				t.Fatalf("%s: changed nothing, the case is worth nothing", drift)
			}
			if changes := apply(t, node, withTunnel()); len(changes) == 0 {
				t.Errorf("%s: repaired, but not reported", drift)
			}
			if got := dump(node); got != want {
				t.Fatalf("%s: got\n%s\nwant\n%s", drift, got, want)
			}
		}
		// Drops take precedence over other programs' later accepts.
		node.Exec("iptables", "-t", "mangle", "-I", "FORWARD", "-i", "fairlead-gw0", "-j", "ACCEPT")
		node.Exec("iptables", "-I", "INPUT", "-p", "udp", "-j", "DROP")
		changes := strings.Join(apply(t, node, withTunnel()), "\n")
		if !strings.Contains(dump(node), "-A INPUT -j FAIRLEAD-INPUT\n-A INPUT -p udp -j DROP\n") {
			t.Errorf("after a rule that drops was put first:\n%s", dump(node))
		}
		if !strings.Contains(changes, "before -A FORWARD -i fairlead-gw0 -j ACCEPT") {
			t.Errorf("the rule that stood before is not named in %s", changes)
		}
		if got := dump(node); !strings.Contains(got, "-A FORWARD -j FAIRLEAD-FORWARD\n-A FORWARD -i fairlead-gw0 -j ACCEPT\n") {
			t.Errorf("after a rule that accepts was put first:\n%s", got)
		}
		// All of Fairlead's rules removed at once.
		for _, cmd := range []string{"iptables -F FORWARD", "iptables -F FAIRLEAD-FORWARD", "iptables -X FAIRLEAD-FORWARD"} {
			node.Exec(strings.Fields(cmd)...)
		}
		apply(t, node, desired())
		if got := dump(node); !strings.Contains(got, "-A FORWARD -j FAIRLEAD-FORWARD\n") {
			t.Errorf("after FORWARD was flushed:\n%s", got)
		}
	})
}

func TestRootSwitchedOffIsRemoved(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	backends(t, func(t *testing.T) {
		node := nstest.New(t)
		node.Exec("iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "192.0.2.66/32", "-j", "RETURN")
		apply(t, node, desired())
		d := desired()
		d.Masquerade, d.PodCIDRs = false, dual[:1]
		apply(t, node, d)
		got := dump(node)
		if strings.Contains(got, "! -o fairlead-gw0") || strings.Count(got, "-j "+Forward) != 2 {
			t.Errorf("without masquerade and IPv6 there is\n%s", got)
		}
		node.Exec("iptables", "-I", "FORWARD", "-i", "eth9", "-m", "comment", "--comment", "manually", "-j", Forward)
		for range 2 {
			node.Must(func() error { _, err := new(Tables).Apply(t.Context(), Desired{}); return err })
			if got = dump(node); strings.Contains(got, "FAIRLEAD") || !strings.Contains(got, "192.0.2.66") {
				t.Errorf("when nothing is desired there is\n%s", got)
			}
		}
	})
}

// RemoveAll removes all of Fairlead's chains and nothing else, once; a dry run reports what it would remove.
func TestRootRemoveAll(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	backends(t, func(t *testing.T) {
		node := nstest.New(t)
		node.Exec("iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "192.0.2.66/32", "-j", "RETURN")
		apply(t, node, desired())
		remove := func(dryRun bool) (changes []string) {
			node.Must(func() (err error) { changes, err = RemoveAll(t.Context(), dryRun); return err })
			return changes
		}
		before := dump(node)
		if changes := remove(true); len(changes) == 0 || dump(node) != before {
			t.Errorf("a dry run says %q, and there is\n%s", changes, dump(node))
		}
		changes := remove(false)
		if got := dump(node); len(changes) == 0 || strings.Contains(got, "FAIRLEAD") || !strings.Contains(got, "192.0.2.66") {
			t.Errorf("it says %q, and there is\n%s", changes, got)
		}
		if changes := remove(false); len(changes) > 0 {
			t.Errorf("a second time it says %q", changes)
		}
	})
}

func TestRootMissingProgram(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	need(t)
	node := nstest.New(t)
	path := os.Getenv("PATH")
	try := func(d Desired) string {
		err := node.Do(func() error { _, err := new(Tables).Apply(t.Context(), d); return err })
		return fmt.Sprint(err)
	}
	t.Setenv("PATH", "/nonexistent")
	if got := try(desired()); !strings.Contains(got, "iptables: iptables is not installed: install the package iptables") ||
		!strings.Contains(got, "ip6tables is not installed") {
		t.Errorf("without both: %s", got)
	}
	if got := try(Desired{}); got != "<nil>" {
		t.Errorf("nothing to remove, but: %s", got)
	}
	// Only ip6tables is missing: IPv4 does not need it.
	dir := t.TempDir()
	for _, name := range []string{"iptables", "iptables-restore"} {
		real, err := findIn(path, name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(real, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	d := desired()
	d.PodCIDRs = dual[:1]
	if got := try(d); got != "<nil>" {
		t.Errorf("IPv4 alone without ip6tables: %s", got)
	}
	if got := try(desired()); !strings.Contains(got, "ip6tables is not installed") || strings.Contains(got, "iptables: iptables") {
		t.Errorf("without ip6tables: %s", got)
	}
	// iptables-restore is missing.
	if err := os.Remove(filepath.Join(dir, "iptables-restore")); err != nil {
		t.Fatal(err)
	}
	d.RandomFully = false
	if got := try(d); !strings.Contains(got, "iptables-restore is not installed") {
		t.Errorf("without iptables-restore: %s", got)
	}
}

// A Tables that is reused queries the version of each program once, and again after its binary is replaced.
func TestRootVersionsAreQueriedOnce(t *testing.T) {
	withBackend(t, "nft", func(t *testing.T) {
		dir, real := filepath.SplitList(os.Getenv("PATH"))[0], filepath.SplitList(os.Getenv("PATH"))[0]+"/real"
		asked := filepath.Join(dir, "asked")
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(os.Mkdir(real, 0o755))
		for _, f := range families() {
			path := filepath.Join(dir, f.program)
			must(os.Rename(path, filepath.Join(real, f.program)))
			script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" != --version ] || echo %s >>%s\nexec %s/%[1]s \"$@\"\n", f.program, asked, real)
			must(os.WriteFile(path, []byte(script), 0o755))
		}
		node, tables := nstest.New(t), new(Tables)
		versions := func() string {
			t.Helper()
			node.Must(func() error { _, err := tables.Apply(t.Context(), desired()); return err })
			log, err := os.ReadFile(asked)
			must(err)
			return string(log)
		}
		const once = "iptables\niptables\nip6tables\nip6tables\n" // by go-iptables, and to detect the back end
		if versions(); versions() != once {
			t.Errorf("applied twice, asked for the version: %q", versions())
		}
		path := filepath.Join(dir, "ip6tables")
		script, err := os.ReadFile(path)
		must(err)
		must(os.WriteFile(path+".new", script, 0o755))
		must(os.Rename(path+".new", path))
		if got := versions(); got != once+"ip6tables\nip6tables\n" {
			t.Errorf("after another ip6tables was installed, asked for the version: %q", got)
		}
	})
}

// Tables are not read again while no rule has changed, if the kernel can report changes.
func TestRootUnchangedRulesAreNotRead(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	backends(t, func(t *testing.T) {
		nft := strings.HasSuffix(t.Name(), "/nft")
		node, tables, started := nstest.New(t), new(Tables), countStarts(t)
		again := func(d Desired) (changes []string, starts int) {
			t.Helper()
			node.Must(func() (err error) { changes, err = tables.Apply(t.Context(), d); return err })
			return changes, started()
		}
		again(desired())
		if changes, starts := again(desired()); len(changes) > 0 || starts == 0 {
			t.Errorf("the written rules were read by %d programs: %q", starts, changes)
		}
		if _, starts := again(desired()); starts == 0 != nft {
			t.Errorf("unchanged rules were read by %d programs", starts)
		}
		for _, drift := range []string{"iptables -t nat -F FAIRLEAD-POSTROUTING", "ip6tables -D FORWARD -j FAIRLEAD-FORWARD",
			"iptables -I FORWARD 1 -i fairlead-gw0 -j DROP"} {
			node.Exec(strings.Fields(drift)...)
			started()
			changes, starts := again(desired())
			if starts == 0 || len(changes) == 0 != strings.Contains(drift, "DROP") {
				t.Errorf("after %s: %d programs, changed %q", drift, starts, changes)
			}
			again(desired())
		}
		if changes, _ := again(withTunnel()); len(changes) == 0 {
			t.Error("other rules are wanted, and nothing was changed")
		}
		again(withTunnel())
		if changes, _ := again(Desired{}); len(changes) == 0 {
			t.Error("none are wanted, and nothing was changed")
		}
	})
}

// An agent that starts asks what chains there are, table by table, not for each of those that it might have created.
func TestRootStartsFewPrograms(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	backends(t, func(t *testing.T) {
		node, started := nstest.New(t), countStarts(t)
		d := withTunnel()
		d.PodCIDRs = d.PodCIDRs[:1] // IPv4 alone
		for _, when := range []string{"on a new node", "after a restart"} {
			apply(t, node, d)
			// Each program's version twice, four tables of two families, the built-in chains and Fairlead's own.
			if got, most := started(), 2*2+2*4+8+8; got > most {
				t.Errorf("%s: %d programs, more than %d", when, got, most)
			}
		}
	})
}

func findIn(path, name string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		if real, err := filepath.EvalSymlinks(filepath.Join(dir, name)); err == nil {
			return real, nil
		}
	}
	return "", fmt.Errorf("no %s in %s", name, path)
}

// kube-proxy holds the lock while it writes. The nft back end has none.
func TestRootWaitsForTheLock(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	withBackend(t, "legacy", func(t *testing.T) {
		node := nstest.New(t)
		lock, err := os.OpenFile(os.Getenv("XTABLES_LOCKFILE"), os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		err = node.Do(func() error { _, err := new(Tables).Apply(t.Context(), desired()); return err })
		if err == nil || !strings.Contains(err.Error(), "has held the lock") {
			t.Errorf("while another process holds the lock: %v", err)
		}
		release := time.AfterFunc(time.Second, func() { _ = syscall.Flock(int(lock.Fd()), syscall.LOCK_UN) })
		defer release.Stop()
		apply(t, node, desired())
	})
}

// A chain with Fairlead's name that iptables cannot print is rewritten.
func TestRootChainMadeByNft(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	need(t)
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("SKIPPED, NOTHING WAS TESTED: needs nft")
	}
	withBackend(t, "nft", func(t *testing.T) {
		node := nstest.New(t)
		apply(t, node, desired())
		want := dump(node)
		node.Exec("nft", "add rule ip nat FAIRLEAD-POSTROUTING meta mark { 1, 2 } counter accept")
		apply(t, node, desired())
		if got := dump(node); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
}

// A table in which another program has a base chain is listed with a comment first. Fairlead's chains there are found
// nevertheless: none is written without need, and all are removed.
func TestRootTableWithForeignBaseChain(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	need(t)
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("SKIPPED, NOTHING WAS TESTED: needs nft")
	}
	withBackend(t, "nft", func(t *testing.T) {
		node := nstest.New(t)
		apply(t, node, desired())
		for _, table := range []string{"ip nat", "ip filter", "ip mangle", "ip6 nat"} {
			node.Exec("nft", "add chain "+table+" foreign { type filter hook input priority 50; }")
		}
		if changes := apply(t, node, desired()); len(changes) > 0 {
			t.Errorf("after a restart it changes %q", changes)
		}
		node.Must(func() error { _, err := RemoveAll(t.Context(), false); return err })
		if got := dump(node); strings.Contains(got, "FAIRLEAD") {
			t.Errorf("it leaves\n%s", got)
		}
	})
}

// Two adjacent podCIDRs are merged into one range, which may start at the same address as one of them: "ip6tables -C"
// of iptables-nft 1.8.9 then reports that the shorter prefix's rule exists if the longer one's does.
func TestRootLongerRange(t *testing.T) {
	backends(t, func(t *testing.T) {
		node := nstest.New(t)
		for _, to := range []string{"10.10.0.0/24 fd00:0:0:100::/64", "10.10.0.0/23 fd00:0:0:100::/63",
			"10.10.0.0/24 fd00:0:0:100::/64"} {
			d := desired()
			for _, p := range strings.Fields(to) {
				d.NotMasqueraded = append(d.NotMasqueraded, netip.MustParsePrefix(p))
			}
			apply(t, node, d)
			for _, p := range d.NotMasqueraded {
				if rule := fmt.Sprintf("-A %s -d %s -j RETURN", Postrouting, p); !strings.Contains(dump(node), rule) {
					t.Errorf("no rule %q:\n%s", rule, dump(node))
				}
			}
			if again := apply(t, node, d); len(again) > 0 {
				t.Errorf("applied once more, it changes %q", again)
			}
		}
	})
}
