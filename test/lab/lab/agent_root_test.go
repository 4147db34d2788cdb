package lab

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// scriptedAgent creates a directory of programs in which the agent is a shell script.
func scriptedAgent(t *testing.T, script string) string {
	t.Helper()
	needRoot(t)
	dir := t.TempDir()
	for _, name := range []string{"lab", "fairlead"} {
		if err := os.Symlink(filepath.Join(binDir, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "fairlead-agent"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// When an agent does not become ready, up shows why and removes everything, even if the agent ignores SIGTERM.
func TestRootUpShowsWhatTheAgentSaid(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		limit  time.Duration // an agent that does not exit uses up all of it
		wants  []string
	}{
		"ended": {"echo boom $NODE_NAME $* >&2; exit 78", time.Minute,
			[]string{"ended, exit code 78", "boom node1 --config /etc/fairlead/agent.conf"}},
		"never": {"echo waiting; exec sleep 1000", 15 * time.Second,
			[]string{"not ready (pid ", "connection refused", "waiting"}},
		"unwilling":  {"trap '' TERM; echo waiting; while :; do sleep 1; done", time.Second, []string{"not ready (pid "}},
		"by signal":  {"kill -9 $$", time.Minute, []string{"ended by signal 9"}},
		"no program": {"", time.Minute, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Nodes: 1, Dir: filepath.Join(t.TempDir(), "lab"), BinDir: scriptedAgent(t, c.script),
				ReadyTimeout: c.limit}
			if name == "no program" {
				if err := os.Remove(o.BinDir + "/fairlead-agent"); err != nil {
					t.Fatal(err)
				}
				c.wants = []string{"no program fairlead-agent in " + o.BinDir}
			}
			_, err := Up(t.Context(), o)
			if err == nil {
				t.Fatal("up found it ready")
			}
			for _, want := range c.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v\nwant %q in it", err, want)
				}
			}
			labWatch{dir: o.Dir}.checkGone(t)
		})
	}
}

func TestRootKeepLeavesTheLab(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lab")
	l, err := Up(t.Context(), Options{Nodes: 1, Dir: dir, BinDir: scriptedAgent(t, "exit 1"),
		ReadyTimeout: time.Second, Keep: true})
	if err == nil || !strings.Contains(err.Error(), "The lab was kept") {
		t.Fatalf("got %v", err)
	}
	w := watchLab(t, l)
	if got := nodeExec(t, l, "node1", "hostname"); got != "node1\n" {
		t.Errorf("the kept node calls itself %q", got)
	}
	if err := Down(t.Context(), dir, nil); err != nil {
		t.Error(err)
	}
	w.checkGone(t)
}

func TestRootAgentStartStopKill(t *testing.T) {
	l := upWithAgents(t, Options{Nodes: 2, Config: []byte("apiPort: 10400\n")})
	state := func() AgentState {
		t.Helper()
		s, err := l.AgentState(labtest.Within(t, 5*time.Second), "node1")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := state(); !s.Ready || s.PID == 0 || s.Exit != nil {
		t.Errorf("after up: %+v", s)
	}
	if err := l.AgentStart(t.Context(), "node1"); err == nil || !strings.Contains(err.Error(), "is already running") {
		t.Errorf("a second agent: %v", err)
	}
	serving := func() { // an agent may be ready a moment before it answers the runtime
		t.Helper()
		eventually(t, "the agent's CNI configuration", func() bool {
			_, err := l.CNI(labtest.Within(t, 5*time.Second), "node1", STATUS)
			return err == nil
		})
	}
	for _, step := range []struct {
		end  func() error
		exit int
	}{
		{func() error { return l.AgentStop(labtest.Within(t, 10*time.Second), "node1") }, 0},
		{func() error { return l.AgentKill(labtest.Within(t, 10*time.Second), "node1") }, 137},
	} {
		serving()
		if err := step.end(); err != nil {
			t.Fatal(err)
		}
		if s := state(); s.PID != 0 || s.Ready || s.Exit == nil || *s.Exit != step.exit {
			t.Errorf("after the end: %+v, want exit code %d", s, step.exit)
		}
		if err := l.AgentStart(labtest.Within(t, 5*time.Second), "node1"); err != nil {
			t.Fatal(err)
		}
		if err := l.WaitReady(labtest.Within(t, 20*time.Second), "node1"); err != nil {
			t.Fatal(err)
		}
	}
	path, err := l.AgentLog("node1")
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(path)
	if err != nil || strings.Count(string(log), "--- lab: starting the agent of node1") != 3 {
		t.Errorf("the log does not show three starts: %v\n%s", err, log)
	}
}

// The complete setup: pods on two nodes, connected by Fairlead's plugin in both families, also after Open vSwitch was
// killed or stopped.
func TestRootPodsByFairlead(t *testing.T) {
	l := upWithAgents(t, Options{Nodes: 2})
	apply(t, l, podYAML("a", "node1"), podYAML("b", "node1"), podYAML("c", "node2"))
	settled(t, l)
	targets := slices.Concat(podState(t, l, "default/b").IPs, podState(t, l, "default/c").IPs)
	if len(targets) != 4 {
		t.Fatalf("addresses of b and c: %v", targets)
	}
	for _, p := range append(underlay.Dual.FarAddrs(), underlay.Dual.NodeAddrs(1)...) {
		targets = append(targets, p.Addr().String())
	}
	for _, to := range targets {
		ping(t, podExec(t, l, "default/a", "ping", "-c3", "-i0.02", "-w30", to))
	}
	answeredOnce(t, l, "10.77.1.1", podState(t, l, "default/b").IPs[0])
	for name, end := range map[string]func() error{
		"kill":       func() error { return l.OVSKill(labtest.Within(t, 10*time.Second), "node1") },
		"stop":       func() error { return l.OVSStop(labtest.Within(t, 10*time.Second), "node1") },
		"kill ovsdb": func() error { return l.OVSKill(labtest.Within(t, 10*time.Second), "node1", OVSDB) },
		"cleanup": func() error {
			nodeExec(t, l, "node1", "ovs-appctl", "-T", "60", "exit", "--cleanup")
			eventually(t, "the end of vswitchd", func() bool {
				s, err := l.NodeStates(t.Context())
				return err == nil && s[0].VswitchdPID == 0
			})
			return l.OVSStop(labtest.Within(t, 10*time.Second), "node1", OVSDB)
		},
	} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		nodes, err := l.NodeStates(labtest.Within(t, 10*time.Second))
		if err != nil || nodes[0].OVSDBPID != 0 || nodes[1].VswitchdPID == 0 {
			t.Errorf("%s: nodes %+v, %v", name, nodes, err)
		}
		if err := l.OVSStart(labtest.Within(t, 20*time.Second), "node1"); err != nil {
			t.Fatal(err)
		}
		if err := l.OVSStart(labtest.Within(t, 20*time.Second), "node1"); err != nil {
			t.Errorf("starting what runs: %v", err)
		}
		for _, to := range targets {
			eventually(t, name+": a reaches "+to+" again", func() bool {
				_, err := l.PodExec(labtest.Within(t, 5*time.Second), "default/a", "ping", "-c1", "-W1", to)
				return err == nil
			})
			ping(t, podExec(t, l, "default/a", "ping", "-c3", "-i0.02", "-w30", to))
		}
	}
	remove(t, l, podYAML("a", "node1"), podYAML("b", "node1"), podYAML("c", "node2"))
	settled(t, l)
	for _, node := range l.Nodes() { // agents remove interfaces after they have answered DEL
		eventually(t, "pods leave no interface and no namespace on "+node, func() bool {
			out := nodeExec(t, l, node, "sh", "-c", "ls /sys/class/net /run/netns | grep -vx "+link.HostName(api.ReachEnd, "eth0"))
			return !strings.Contains(out, "\nfl") && !strings.Contains(out, "cni-")
		})
	}
}

// answeredOnce checks that pod a's ARP request for each target has one reply.
func answeredOnce(t *testing.T, l *Lab, targets ...string) {
	t.Helper()
	rec, err := l.Records().Load("default/a")
	if err != nil {
		t.Fatal(err)
	}
	h, err := l.Host(rec.Node)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range targets {
		macs := arpReplies(t, h, rec.Netns, "eth0", netip.MustParseAddr(rec.IPs[0]), netip.MustParseAddr(target), 1)
		if len(macs) != 1 {
			t.Errorf("pod a's ARP for %s was answered by %v, want one answer", target, macs)
		}
	}
}
