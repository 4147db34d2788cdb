package agents

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/diagnose/versions"
)

// State is the state of this node's components.
type State struct {
	Agent      *api.AgentState `json:"agent,omitempty"`
	AgentError string          `json:"agentError,omitempty"`
	// OVS summarises the state of Open vSwitch.
	OVS    string `json:"ovs"`
	Uplink string `json:"uplink"`
}

// ReadState queries the components of this node. The State says which did not answer.
func ReadState(ctx context.Context, cfg api.AgentConfig, journal string) *State {
	s := &State{OVS: ovsSummary(ctx, cfg), Uplink: uplinkSummary(ctx, journal)}
	if a, err := nodestate.Agent(ctx, cfg); err != nil {
		s.AgentError = err.Error()
	} else {
		s.Agent = &a
	}
	return s
}

func ovsSummary(ctx context.Context, cfg api.AgentConfig) string {
	db, err := nodestate.OVS(ctx, cfg)
	if err != nil {
		return err.Error()
	}
	defer db.Close()
	o, err := db.Observe(cfg.OVSBridge)
	switch {
	case err != nil:
		return err.Error()
	case !o.BridgePresent:
		return "runs, without the bridge " + cfg.OVSBridge
	}
	sw, err := nodestate.Switch(ctx, cfg)
	if err != nil {
		return "ovsdb-server runs, ovs-vswitchd does not answer: " + err.Error()
	}
	sw.Close()
	version, err := vswitchd.Version(ctx, cfg.OVSRunDir)
	if err != nil {
		version = "unknown"
	}
	return fmt.Sprintf("runs, bridge %s, datapath %s, %d pods; version %s: %s", cfg.OVSBridge, o.DatapathType, o.PodCount(),
		version, versions.Of(versions.OpenVSwitch, version, time.Now()))
}

func uplinkSummary(ctx context.Context, journal string) string {
	u, err := uplink.Open(journal, logr.Discard())
	if err != nil {
		return err.Error()
	}
	s, err := u.Status(ctx)
	if err != nil {
		return err.Error()
	}
	words := strings.TrimSpace(strings.SplitN(s.String(), "\n", 2)[0])
	if s.Journal != "" {
		words += "; " + strings.ReplaceAll(s.Journal, "\n", "; ")
	}
	return words
}

// Write writes it as text.
func (s *State) Write(p *report.Printer) {
	agent := p.Paint(report.Bad, s.AgentError)
	if a := s.Agent; a != nil {
		agent = p.Paint(report.Good, "ready")
		switch {
		case a.NotReady != "":
			agent = p.Paint(report.Bad, "not ready: ") + a.NotReady
		case a.Degraded != "":
			agent = p.Paint(report.Middle, "degraded: ") + a.Degraded
		}
		p.Line("this node is %s, fairlead-agent %s: %d pods, %d flows, pods' MTU %d", a.Node, a.Version, a.Pods, len(a.Flows), a.PodMTU)
	}
	p.Text("agent         ", agent)
	p.Text("Open vSwitch  ", s.OVS)
	p.Text("uplink        ", s.Uplink)
	if s.Agent != nil && s.Agent.Reach != nil {
		p.Text("reaches       ", ReachSummary(p, *s.Agent.Reach))
	}
}
