package checks

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// NodeProbe examines the node that it runs on.
type NodeProbe struct {
	// Config is the agent's config.
	Config api.AgentConfig
	// Journal is the file of the uplink's journal.
	Journal string
}

func (n *NodeProbe) examine(ctx context.Context, c string, secondLook time.Duration) (
	found []report.Finding, notKnown []string, err error) {
	switch c {
	case CheckAgent:
		return n.agent(ctx), nil, nil
	case CheckOVS:
		found, err = n.ovs(ctx)
	case CheckUplink:
		found, err = n.uplink(ctx)
	case CheckFlows:
		return n.flows(ctx, secondLook)
	case CheckFirewall:
		found, err = n.firewall(ctx)
	case CheckMTU:
		return n.mtu(ctx)
	case CheckReach:
		found, err = n.reach(ctx)
	case CheckVLANs:
		return n.vlans(ctx)
	}
	return found, nil, err
}

func (n *NodeProbe) agent(ctx context.Context) []report.Finding {
	s, err := nodestate.Agent(ctx, n.Config)
	look := report.Remedy{Text: "Check its log, and start it if it does not run",
		Commands: []string{"kubectl -n kube-system logs " + podHere(api.AgentPodSelector) + "   # or: journalctl -u fairlead-agent"}}
	f := report.Finding{Check: CheckAgent, Severity: report.Failing, Remedies: []report.Remedy{look}}
	if err != nil {
		f.Kind, f.Cause = "agent-away", err.Error()+". Running pods keep their network; new pods get none"
		return []report.Finding{f}
	}
	f.About, f.Evidence = []string{s.Node}, []string{"reported by this node's agent"}
	var out []report.Finding
	degraded := s.Degraded
	if s.NoTunnel != "" {
		out = append(out, noTunnel(s))
		degraded = strings.TrimSpace(strings.Replace(degraded, s.NoTunnel, "", 1))
	}
	switch {
	case s.NotReady != "":
		f.Kind, f.Cause = "agent-not-ready", s.NotReady
		return append(out, f)
	case degraded != "":
		f.Kind, f.Cause, f.Severity, f.Remedies = "agent-degraded", degraded, report.Warning, nil
		f.Evidence = []string{"reported by this node's agent, which serves pods nevertheless"}
		return append(out, f)
	}
	return out
}

// noTunnel is about a tunnel that this node's Open vSwitch cannot use.
func noTunnel(s api.AgentState) report.Finding {
	return report.Finding{Check: CheckAgent, Kind: "no-tunnel", Severity: report.Failing, About: []string{s.Node}, Cause: s.NoTunnel,
		Evidence: []string{"reported by this node's agent", "ovs-appctl ovs/route/show", "ovs-vsctl show"},
		Remedies: []report.Remedy{
			{Text: "If the kernel has the module openvswitch, remove ovsDatapathType: netdev from the agents' config"},
			{Text: "In the node's network configuration, create an Open vSwitch bridge with the NIC as a port, and move the node's " +
				"addresses and routes to it", Commands: []string{"ovs-vsctl add-br br-phy -- set Bridge br-phy datapath_type=netdev fail_mode=standalone " +
				"-- add-port br-phy " + s.Transport + "   # then move them, or the node is cut off"},
				Beware: []string{"The node has no network between the two steps, and none while Open vSwitch does not run"}},
			{Text: "If the nodes are in one subnet, or routers have routes to their podCIDRs, set trafficEncapMode: noEncap in the agents' config"}}}
}

// podHere is a shell expression for the name of this node's pod that a selector matches: kubectl logs selects by labels
// only.
func podHere(selector string) string {
	node := os.Getenv("NODE_NAME") // in the agent's pod
	if name, err := os.Hostname(); node == "" && err == nil {
		node = strings.ToLower(name) // as kubelet names the Node
	}
	return fmt.Sprintf("$(kubectl -n kube-system get pods -o name -l %s --field-selector spec.nodeName=%s)", selector, node)
}

// startOVS are the ways to start Open vSwitch. In the DaemonSet fairlead-ovs it has its database in the run directory,
// as the node's own service in one of two others.
func startOVS(daemon, runDir string, ownDirs ...string) []report.Remedy {
	has := func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, "conf.db"))
		return err == nil
	}
	pod, own := has(runDir), slices.ContainsFunc(ownDirs, has)
	var out []report.Remedy
	if pod || !own {
		here := podHere("app.kubernetes.io/name=fairlead-ovs")
		out = append(out, report.Remedy{Text: "Check the log of this node's pod of the DaemonSet fairlead-ovs, " +
			"which restarts what dies; delete the pod to start it again",
			Commands: []string{"kubectl -n kube-system logs " + here, "kubectl -n kube-system delete " + here}})
	}
	if own || !pod {
		out = append(out, report.Remedy{Text: "Start the node's Open vSwitch; its log has the reason why it stopped",
			Commands: []string{"systemctl restart openvswitch-switch   # or: ovs-ctl start",
				"tail /var/log/openvswitch/" + daemon + ".log"}})
	}
	return out
}

// startOVS are the ways to start it on this node.
func (n *NodeProbe) startOVS(daemon string) []report.Remedy {
	return startOVS(daemon, n.Config.OVSRunDir, "/etc/openvswitch", "/var/lib/openvswitch")
}

func (n *NodeProbe) ovs(ctx context.Context) ([]report.Finding, error) {
	db, err := nodestate.OVS(ctx, n.Config)
	if err != nil && os.Geteuid() != 0 {
		return nil, err
	}
	if err != nil {
		return []report.Finding{{Check: CheckOVS, Kind: "ovsdb-down", Severity: report.Failing, Cause: err.Error() + ". No pod can be added or removed",
			Remedies: n.startOVS("ovsdb-server")}}, nil
	}
	defer db.Close()
	o, err := db.Observe(n.Config.OVSBridge)
	if err != nil {
		return nil, err
	}
	out := append(n.bridge(ctx, db, o), n.version(ctx)...)
	for _, b := range o.Broken {
		out = append(out, report.Finding{Check: CheckOVS, Kind: "record-broken", Severity: report.Warning, About: []string{b.Name},
			Cause:    fmt.Sprintf("the record of pod port %s is invalid: %s", b.Name, b.Reason),
			Evidence: []string{"ovs-vsctl list Port " + b.Name}})
	}
	if len(o.Foreign) > 0 {
		out = append(out, report.Finding{Check: CheckOVS, Kind: "foreign-ports", Severity: report.Warning, About: o.Foreign,
			Cause: fmt.Sprintf("bridge %s has %s not Fairlead's: no traffic is forwarded there", n.Config.OVSBridge,
				report.Count(len(o.Foreign), "a port that is", "%d ports that are")),
			Evidence: []string{report.Some(o.Foreign)},
			Remedies: []report.Remedy{{Text: "Remove the ports that are not needed",
				Commands: []string{"ovs-vsctl del-port " + n.Config.OVSBridge + " " + o.Foreign[0]}}}})
	}
	return out, nil
}

// bridge is about ovs-vswitchd and the bridge.
func (n *NodeProbe) bridge(ctx context.Context, db *ovsdb.DB, o ovsdb.Observed) []report.Finding {
	f := report.Finding{Check: CheckOVS, Severity: report.Failing, About: []string{n.Config.OVSBridge}}
	switch {
	case !o.BridgePresent:
		f.Kind, f.Cause = "no-bridge", "there is no bridge "+n.Config.OVSBridge+": the agent creates it when it starts, and when it was deleted"
		return []report.Finding{f}
	case o.DatapathLost:
		f.Kind, f.Cause = "datapath-lost", "the datapath of bridge "+n.Config.OVSBridge+
			" was deleted (ovs-dpctl del-dp), and ovs-vswitchd cannot recreate it while it runs"
		f.Remedies = n.startOVS("ovs-vswitchd")
		return []report.Finding{f}
	}
	if sw, err := nodestate.Switch(ctx, n.Config); err != nil {
		f.Kind, f.Cause = "vswitchd-down", "ovs-vswitchd is down or hangs: "+err.Error()
		f.Remedies = n.startOVS("ovs-vswitchd")
		return []report.Finding{f}
	} else {
		sw.Close()
	}
	names := []string{}
	for _, p := range []ovsdb.Port{o.Gateway, o.Tunnel, o.Uplink} {
		if p.Present {
			names = append(names, p.Name)
		}
	}
	for _, p := range o.Pods {
		names = append(names, p.HostIf)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := db.WaitOFPorts(ctx, names...); err != nil {
		f.Kind, f.Cause = "port-without-number", err.Error()+". No traffic is forwarded through such a port"
		return []report.Finding{f}
	}
	return nil
}

func (n *NodeProbe) uplink(ctx context.Context) ([]report.Finding, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("this needs root (sudo)")
	}
	u, err := uplink.Open(n.Journal, logr.Discard())
	if err != nil {
		return []report.Finding{{Check: CheckUplink, Kind: "journal-unreadable", Severity: report.Failing, Cause: err.Error()}}, nil
	}
	s, err := u.Status(ctx)
	if err != nil {
		return nil, err
	}
	return append(n.journal(s), n.attachment(ctx, s)...), nil
}

// journal is about the files of the uplink's journal, on a node that has or wants an uplink.
func (n *NodeProbe) journal(s uplink.Status) []report.Finding {
	if s.Journal == "" || s.NIC == "" && !n.Config.EnableBridgingMode {
		return nil
	}
	return []report.Finding{{Check: CheckUplink, Kind: "uplink-journal", Severity: report.Failing, About: []string{n.Journal},
		Cause: s.Journal, Evidence: []string{"fairleadctl uplink status"},
		Remedies: []report.Remedy{{Text: "Check whether its file system is full or read-only, and what the kernel says about the disk",
			Commands: []string{"findmnt -o TARGET,SOURCE,FSTYPE,OPTIONS,AVAIL -T " + filepath.Dir(n.Journal), "dmesg | tail"}},
			{Text: "The agent rewrites a damaged journal file: start it"}}}}
}

// attachment is about a NIC that is attached, or should be.
func (n *NodeProbe) attachment(ctx context.Context, s uplink.Status) []report.Finding {
	f := report.Finding{Check: CheckUplink, Severity: report.Failing, About: []string{s.NIC},
		Evidence: []string{"fairleadctl uplink status"}}
	if a, err := nodestate.Agent(ctx, n.Config); err == nil && a.Bridging && a.NoUplink != "" {
		f.Kind, f.Cause = "no-uplink", "bridged pods have no network: "+a.NoUplink
		f.Remedies = []report.Remedy{{Text: "Check what prevents the attach", Commands: []string{"fairleadctl uplink preflight"}}}
		return []report.Finding{f}
	}
	switch {
	case s.OVSDB != "" && s.Phase != uplink.Detached:
		f.Kind, f.Cause = "uplink-ovsdb", "Open vSwitch's database cannot be queried about the uplink: "+s.OVSDB
	case s.OtherBoot && s.Phase != uplink.Detached:
		f.Kind, f.Cause = "uplink-other-boot", fmt.Sprintf("the uplink's journal says %s, but is from an earlier boot", s.Phase)
	case s.Next != "":
		f.Kind, f.Cause = "uplink-unfinished", fmt.Sprintf("the uplink is %s but incomplete: the next step is %s", s.Phase, s.Next)
	default:
		return nil
	}
	f.Remedies = []report.Remedy{{Text: "Start the agent: it resumes, or restores the NIC"},
		{Text: "Restore the NIC manually", Commands: []string{"fairleadctl uplink restore"},
			Beware: []string{"Bridged pods then have no network until the agent is restarted"}}}
	return []report.Finding{f}
}

func (n *NodeProbe) flows(ctx context.Context, secondLook time.Duration) (
	found []report.Finding, notKnown []string, err error) {
	_, aerr := nodestate.Agent(ctx, n.Config)
	if aerr != nil {
		notKnown = []string{"missing flows: the agent, which knows the desired ones, does not answer"}
	}
	found, err = checkTwice(ctx, secondLook, n.compareFlows)
	return found, notKnown, err
}

func (n *NodeProbe) compareFlows(ctx context.Context) ([]report.Finding, error) {
	sw, err := nodestate.Switch(ctx, n.Config)
	if err != nil {
		return nil, err
	}
	defer sw.Close()
	s, _ := nodestate.Agent(ctx, n.Config) // if it fails, all of Fairlead's own flows count as correct
	d, err := sw.Compare(ctx, s.Flows)
	if err != nil || len(d.Missing)+len(d.Foreign) == 0 {
		return nil, err
	}
	f := report.Finding{Check: CheckFlows, Kind: "flows-differ", Severity: report.Failing, About: []string{n.Config.OVSBridge},
		Cause: fmt.Sprintf("on bridge %s %d flows are missing or modified, and %d are not desired. The agent repairs that within 15 seconds, so something keeps changing them, or the agent cannot write", n.Config.OVSBridge,
			len(d.Missing), len(d.Foreign)),
		Remedies: []report.Remedy{{Text: "Find what changes them; the agent's log lists what it has reverted",
			Commands: []string{"ovs-ofctl monitor unix:" + filepath.Join(n.Config.OVSRunDir, n.Config.OVSBridge+".mgmt") + " watch:"}}}}
	for _, l := range []struct {
		what  string
		flows []string
	}{{"missing: ", d.Missing}, {"not desired: ", d.Foreign}} {
		for i, flow := range l.flows {
			if i == 3 {
				f.Evidence = append(f.Evidence, fmt.Sprintf("and %d more %s", len(l.flows)-3, l.what[:len(l.what)-2]))
				break
			}
			f.Evidence = append(f.Evidence, l.what+flow)
		}
	}
	return []report.Finding{f}, nil
}
