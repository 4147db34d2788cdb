// Package preflight reports whether a NIC can be attached safely, in which mode, and what to do if it cannot. It
// changes nothing.
package preflight

import (
	"context"
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/rows"
	"github.com/fairlead-cni/fairlead/datapath/uplink/steer"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
)

// NIC describes the NIC to attach. The fields are those of uplink.Plan.
type NIC struct {
	Name, Datapath, OVSRunDir, Pins string
	Tunnels, AllowManaged           bool
}

// Report is what an attach would do, or why it is refused.
type Report struct {
	NIC string `json:"nic"`
	// Mode is the mode of the attach: api.UplinkSteer or api.UplinkBridge. NotSteer is why mode auto does not choose
	// steer.
	Mode     string `json:"mode"`
	NotSteer string `json:"notSteer,omitempty"`
	// Refused are the reasons why the NIC cannot be attached safely, each with its remedy. None: it can.
	Refused []string `json:"refused"`
	// Unknown is what could not be checked, and might be a reason to refuse.
	Unknown []string `json:"unknown,omitempty"`
	// Notes are what to know before attaching nevertheless.
	Notes []string `json:"notes"`
	// Moves are the addresses, routes, rules and neighbours that would move to br-uplink.
	Moves []string `json:"moves"`
	// VLANs have their own interface on the NIC (802.1Q), which receives their frames: no pool may use them on this node.
	VLANs []int `json:"vlans"`
}

// RefusedError says why a NIC is not attached.
type RefusedError struct{ Report Report }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s cannot be attached safely in mode %s: %s", e.Report.NIC, e.Report.Mode,
		strings.Join(e.Report.Refused, "; "))
}

// NewReport returns the Report of a NIC without findings.
func NewReport(nic, mode string) Report {
	return Report{NIC: nic, Mode: mode, Refused: []string{}, Notes: []string{}, Moves: []string{}, VLANs: []int{}}
}

// Bridge checks whether the NIC can be attached in mode bridge.
func Bridge(ctx context.Context, n NIC) (Report, error) {
	nic, f, err := readHost(ctx, n)
	if err == nil {
		f.tentative, err = awaitAddresses(ctx, n.Name, f)
	}
	if err != nil {
		return Report{NIC: n.Name}, err
	}
	f.noNFT = n.Datapath == api.DatapathNetdev && !haveNFT()
	f.allowManaged = n.AllowManaged
	f.noIPv6 = nic.MTU < hoststate.LeastMTU && kernel.HasIPv6()
	return judge(nic, f), nil
}

// Steer checks whether the NIC can be attached in mode steer.
func Steer(ctx context.Context, n NIC) (Report, error) {
	nic, f, err := readHost(ctx, n)
	if err != nil {
		return Report{NIC: n.Name}, err
	}
	return judgeSteer(nic, f, n.Tunnels && n.Datapath == api.DatapathNetdev, steer.Probe(n.Pins)), nil
}

// readHost reads what both modes need.
func readHost(ctx context.Context, n NIC) (hoststate.Link, nicFacts, error) {
	nic, err := hoststate.Read(n.Name)
	if err != nil {
		return nic, nicFacts{}, err
	}
	f, err := readFacts(n.Name)
	s, ovsErr := rows.Find(n.OVSRunDir).Read(ctx, rows.Bridge{Name: rows.BridgeName, Patch: rows.PatchPort}, n.Name)
	f.bridge, f.ovsErr, f.foreignBridge = s.Elsewhere, ovsErr, s.Present && !s.Ours
	f.noVswitchd, f.hungVswitchd = !vswitchd.Running(n.OVSRunDir), vswitchd.Hangs(ctx, n.OVSRunDir)
	return nic, f, err
}

func (r Report) String() string {
	var b strings.Builder
	for _, part := range []struct {
		title string
		lines []string
	}{{"refused, because", r.Refused}, {"not known", r.Unknown}, {"note", r.Notes}, {"would move from " + r.NIC + " to " + rows.BridgeName, r.Moves}} {
		if len(part.lines) > 0 {
			fmt.Fprintf(&b, "%s:\n  %s\n", part.title, strings.Join(part.lines, "\n  "))
		}
	}
	if r.NotSteer != "" {
		fmt.Fprintf(&b, "not mode steer, because: %s\n", r.NotSteer)
	}
	switch {
	case len(r.Refused) > 0:
	case len(r.Unknown) > 0:
		fmt.Fprintf(&b, "%s can be attached in mode %s, as far as is known\n", r.NIC, r.Mode)
	default:
		fmt.Fprintf(&b, "%s can be attached in mode %s\n", r.NIC, r.Mode)
	}
	return b.String()
}
