package checks

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
)

// NodeProbe looks at the node that it runs on.
type NodeProbe struct {
	// Config is the agent's.
	Config api.AgentConfig
	// Journal is the uplink's.
	Journal string
}

func (n *NodeProbe) examine(ctx context.Context, c Check, secondLook time.Duration) (
	found []Finding, notKnown []string, err error) {
	switch c {
	case CheckAgent:
		return n.agent(ctx), nil, nil
	case CheckOVS:
		found, err = n.ovs(ctx)
	case CheckUplink:
		found, err = n.uplink(ctx)
	case CheckFlows:
		return n.flows(ctx, secondLook)
	case CheckMTU:
		return n.mtu(ctx)
	}
	return found, nil, err
}

func (n *NodeProbe) agent(ctx context.Context) []Finding {
	s, err := nodestate.Agent(ctx, n.Config)
	look := Remedy{Text: "Look at its log, and start it again if it has ended",
		Commands: []string{"kubectl -n kube-system logs -l " + api.AgentPodSelector + " --field-selector spec.nodeName=$(hostname)   " +
			"# or: journalctl -u fairlead-agent"}}
	switch {
	case err != nil:
		return []Finding{{Check: CheckAgent, Kind: "agent-away", Severity: Failing, Cause: err.Error() + ". Pods keep their network; new " +
			"ones get none", Remedies: []Remedy{look}}}
	case s.NotReady != "":
		return []Finding{{Check: CheckAgent, Kind: "agent-not-ready", Severity: Failing, About: []string{s.Node}, Cause: s.NotReady,
			Evidence: []string{"the agent of this node says so"}, Remedies: []Remedy{look}}}
	case s.Degraded != "":
		return []Finding{{Check: CheckAgent, Kind: "agent-degraded", Severity: Warning, About: []string{s.Node}, Cause: s.Degraded,
			Evidence: []string{"the agent of this node says so; it serves pods all the same"}}}
	}
	return nil
}

// startOVS are the ways to start Open vSwitch.
func startOVS(daemon string) []Remedy {
	return []Remedy{{Text: "Start it; its log says why it ended", Commands: []string{
		"systemctl restart openvswitch-switch   # or: ovs-ctl start", "tail /var/log/openvswitch/" + daemon + ".log"}}}
}

func (n *NodeProbe) ovs(ctx context.Context) ([]Finding, error) {
	db, err := nodestate.OVS(ctx, n.Config)
	if err != nil && os.Geteuid() != 0 {
		return nil, err
	}
	if err != nil {
		return []Finding{{Check: CheckOVS, Kind: "ovsdb-down", Severity: Failing, Cause: err.Error() + ". No pod can be added or removed",
			Remedies: startOVS("ovsdb-server")}}, nil
	}
	defer db.Close()
	o, err := db.Observe(n.Config.OVSBridge)
	if err != nil {
		return nil, err
	}
	out := n.bridge(ctx, db, o)
	for _, b := range o.Broken {
		out = append(out, Finding{Check: CheckOVS, Kind: "record-broken", Severity: Warning, About: []string{b.Name},
			Cause:    fmt.Sprintf("port %s is a pod's, and its record can't be read: %s", b.Name, b.Reason),
			Evidence: []string{"ovs-vsctl list Port " + b.Name}})
	}
	if len(o.Foreign) > 0 {
		out = append(out, Finding{Check: CheckOVS, Kind: "foreign-ports", Severity: Warning, About: o.Foreign,
			Cause: fmt.Sprintf("bridge %s has %s not Fairlead's: nothing is forwarded there", n.Config.OVSBridge,
				number(len(o.Foreign), "a port that is", "%d ports that are")),
			Evidence: []string{some(o.Foreign)},
			Remedies: []Remedy{{Text: "Take out what nobody needs",
				Commands: []string{"ovs-vsctl del-port " + n.Config.OVSBridge + " " + o.Foreign[0]}}}})
	}
	return out, nil
}

// bridge is about ovs-vswitchd and what it has made.
func (n *NodeProbe) bridge(ctx context.Context, db *ovsdb.DB, o ovsdb.Observed) []Finding {
	f := Finding{Check: CheckOVS, Severity: Failing, About: []string{n.Config.OVSBridge}}
	switch {
	case !o.BridgePresent:
		f.Kind, f.Cause = "no-bridge", "there is no bridge "+n.Config.OVSBridge+": the agent makes it when it starts, and when "+
			"somebody has deleted it"
		return []Finding{f}
	case o.DatapathLost:
		f.Kind, f.Cause = "datapath-lost", "somebody has deleted the datapath of bridge "+n.Config.OVSBridge+
			" (ovs-dpctl del-dp), and ovs-vswitchd can't make it anew while it runs"
		f.Remedies = startOVS("ovs-vswitchd")
		return []Finding{f}
	}
	if sw, err := nodestate.Switch(ctx, n.Config); err != nil {
		f.Kind, f.Cause = "vswitchd-down", "ovs-vswitchd is down or hangs: "+err.Error()
		f.Remedies = startOVS("ovs-vswitchd")
		return []Finding{f}
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
		f.Kind, f.Cause = "port-without-number", err.Error()+". Nothing is forwarded through such a port"
		return []Finding{f}
	}
	return nil
}

func (n *NodeProbe) uplink(ctx context.Context) ([]Finding, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("this needs root (sudo)")
	}
	u, err := uplink.Open(n.Journal, logr.Discard())
	if err != nil {
		return []Finding{{Check: CheckUplink, Kind: "journal-unreadable", Severity: Failing, Cause: err.Error()}}, nil
	}
	s, err := u.Status(ctx)
	if err != nil {
		return nil, err
	}
	f := Finding{Check: CheckUplink, Severity: Failing, About: []string{s.NIC},
		Evidence: []string{"fairleadctl uplink status"}}
	if a, err := nodestate.Agent(ctx, n.Config); err == nil && a.Bridging && a.NoUplink != "" {
		f.Kind, f.Cause = "no-uplink", "bridged pods have no network: "+a.NoUplink
		f.Remedies = []Remedy{{Text: "See what is in the way", Commands: []string{"fairleadctl uplink preflight"}}}
		return []Finding{f}, nil
	}
	switch {
	case s.OVSDB != "" && s.Phase != uplink.Detached:
		f.Kind, f.Cause = "uplink-ovsdb", "Open vSwitch's database can't be asked about the uplink: "+s.OVSDB
	case s.OtherBoot && s.Phase != uplink.Detached:
		f.Kind, f.Cause = "uplink-other-boot", fmt.Sprintf("the uplink's journal says %s, and is of a boot before this one", s.Phase)
	case s.Next != "":
		f.Kind, f.Cause = "uplink-unfinished", fmt.Sprintf("the uplink is %s and not complete: the next step would be %s", s.Phase, s.Next)
	default:
		return nil, nil
	}
	f.Remedies = []Remedy{{Text: "Start the agent: it goes on, or takes the NIC back"},
		{Text: "Give the NIC back to the host by hand", Commands: []string{"fairleadctl uplink restore"},
			Beware: []string{"Bridged pods have no network then, until the agent is started anew"}}}
	return []Finding{f}, nil
}

func (n *NodeProbe) flows(ctx context.Context, secondLook time.Duration) (
	found []Finding, notKnown []string, err error) {
	_, aerr := nodestate.Agent(ctx, n.Config)
	if aerr != nil {
		notKnown = []string{"flows that are missing: the agent, which knows what there should be, does not answer"}
	}
	found, err = twice(ctx, secondLook, n.compareFlows)
	return found, notKnown, err
}

func (n *NodeProbe) compareFlows(ctx context.Context) ([]Finding, error) {
	sw, err := nodestate.Switch(ctx, n.Config)
	if err != nil {
		return nil, err
	}
	defer sw.Close()
	s, _ := nodestate.Agent(ctx, n.Config) // then all that is ours is as it should be
	d, err := sw.Compare(ctx, s.Flows)
	if err != nil || len(d.Missing)+len(d.Foreign) == 0 {
		return nil, err
	}
	f := Finding{Check: CheckFlows, Kind: "flows-differ", Severity: Failing, About: []string{n.Config.OVSBridge},
		Cause: fmt.Sprintf("of the flows of bridge %s %d are missing or altered, and %d are there that should not be. The agent sets "+
			"that right within 15 seconds, so somebody changes them again and again, or the agent can't", n.Config.OVSBridge,
			len(d.Missing), len(d.Foreign)),
		Remedies: []Remedy{{Text: "Find who changes them; the agent's log says what it has set right",
			Commands: []string{"ovs-ofctl monitor unix:" + filepath.Join(n.Config.OVSRunDir, n.Config.OVSBridge+".mgmt") + " watch:"}}}}
	for _, l := range []struct {
		what  string
		flows []string
	}{{"missing: ", d.Missing}, {"not wanted: ", d.Foreign}} {
		for i, flow := range l.flows {
			if i == 3 {
				f.Evidence = append(f.Evidence, fmt.Sprintf("and %d more %s", len(l.flows)-3, l.what[:len(l.what)-2]))
				break
			}
			f.Evidence = append(f.Evidence, l.what+flow)
		}
	}
	return []Finding{f}, nil
}
