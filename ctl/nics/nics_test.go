package nics

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/ctl/agents"
	"github.com/fairlead-cni/fairlead/datapath/uplink/preflight"
	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// says is a node's output; change modifies its report.
func says(t *testing.T, node, nic, mode string, change func(*preflight.Report)) agents.CommandResult {
	t.Helper()
	r := preflight.NewReport(nic, mode)
	if change != nil {
		change(&r)
	}
	out, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return agents.CommandResult{Node: node, Output: out, OK: len(r.Refused) == 0, Why: "exit code 4"}
}

// lease refuses because of a DHCP address: the same cause on every node, with different addresses.
func lease(addr, valid, nic string) func(*preflight.Report) {
	return func(r *preflight.Report) {
		r.Refused = []string{"the address " + addr + " is valid for " + valid + " only: a DHCP client renews it on " + nic +
			", but not on br-uplink. Make the address permanent"}
	}
}

// Every node has a line; a cause that several nodes share is printed once, even if addresses and names in it differ.
func TestAll(t *testing.T) {
	var nodes []cluster.Node
	for _, name := range []string{"n1", "n2", "n3", "n4", "n5", "n6", "n7"} {
		nodes = append(nodes, cluster.Node{Name: name, Ready: "True"})
	}
	nodes[5].Ready = "Unknown"
	nodes = append(nodes, cluster.Node{Name: "win", Ready: "True", NoAgent: "it runs windows"},
		cluster.Node{Name: "new", Ready: "False"})
	if got := running(nodes); !slices.Equal(got, []string{"n1", "n2", "n3", "n4", "n5", "n7", "new"}) {
		t.Errorf("asked are %v", got)
	}
	a := all(nodes, []agents.CommandResult{
		says(t, "n1", "eth0", "steer", nil),
		says(t, "n2", "enp1s0", "bridge", lease("192.0.2.12", "1h0m0s", "enp1s0")),
		says(t, "n3", "ens5", "bridge", lease("192.0.2.13", "23m10s", "ens5")),
		says(t, "n4", "eth0", "bridge", func(r *preflight.Report) {
			r.Unknown = []string{"whether NetworkManager or systemd-networkd manages it: the Pod does not see the node's /run"}
			r.NotSteer = "the kernel has no BPF"
		}),
		{Node: "n5", Down: true, Why: "its Pod does not run: CrashLoopBackOff"},
		says(t, "n7", "eno1", "steer", func(r *preflight.Report) {
			r.Refused = []string{"it is down: configure it and set it up, then try again"}
		}),
		{Node: "new", Output: []byte("{}"), OK: true, Why: "its agent's answer is not one of this version"},
	})
	var b bytes.Buffer
	a.Write(report.New(&b, false))
	text := b.String()
	t.Log("\n" + text)
	for _, line := range []string{"NODE  NIC     MODE    RESULT", "n1    eth0    steer   ok", "n2    enp1s0  bridge  cannot", "n3    ens5    bridge  cannot",
		"n4    eth0    bridge  not all known", "n5    -       -       not queried", "n6    -       -       not queried", "n7    eno1    steer   cannot",
		"new   -       -       not queried", "Problem 1: nic-refused", "Problem 2: nic-refused", "  the NIC of n7 cannot be attached: it is down: configure it and set it up, then try again"} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("there is no line %q", line)
		}
	}
	flat := strings.Join(strings.Fields(text), " ")
	for _, words := range []string{"the NIC of n2, n3 cannot be attached: the address 192.0.2.12 is valid for 1h0m0s only",
		"note: names and numbers are those of n2; -o json has each node's", "Warning 3: nic-not-known for the NIC of n4 it is not known whether NetworkManager",
		"n5 could not be queried: its Pod does not run: CrashLoopBackOff", "n6 could not be queried: its kubelet does not report",
		"new could not be queried: its agent's answer is not one of", "note: n4: not mode steer, because the kernel has no BPF"} {
		if !strings.Contains(flat, words) {
			t.Errorf("it does not say %q", words)
		}
	}
	if len(a.Findings) != 6 || a.Severity() != report.Failing || a.Unanswered() != nil || strings.Contains(text, "win") {
		t.Errorf("%d findings, %v, %v", len(a.Findings), a.Severity(), a.Unanswered())
	}
}

func TestSeverity(t *testing.T) {
	for worst, results := range map[report.Severity][]Result{report.Healthy: {Can, Can}, report.Warning: {Can, NotQueried},
		report.Failing: {NotQueried, Cannot, Partly}} {
		a := All{}
		for _, r := range results {
			a.Nodes = append(a.Nodes, Node{Result: r})
		}
		if a.Severity() != worst || a.Unanswered() == nil {
			t.Errorf("%v: %v, want %v; %v", results, a.Severity(), worst, a.Unanswered())
		}
	}
}
