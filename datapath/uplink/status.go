package uplink

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/uplink/steer"
)

// ByHand is the reason of a restore that somebody asked for.
const ByHand = "restored manually"

// Status is what the journal says and what is found.
type Status struct {
	// Phase is the journal's; "detached" where there is none.
	Phase  Phase  `json:"phase"`
	NIC    string `json:"nic,omitempty"`
	Bridge string `json:"bridge,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Mode is api.UplinkSteer or api.UplinkBridge; NotSteer is why mode auto has not taken steer.
	Mode     string `json:"mode,omitempty"`
	NotSteer string `json:"notSteer,omitempty"`
	// Since is when the journal was last written.
	Since time.Time `json:"since,omitzero"`
	// Yielded: it is attached again when another ovs-vswitchd runs.
	Yielded bool `json:"yielded,omitempty"`
	// OtherBoot: the journal is of a boot before.
	OtherBoot bool `json:"otherBoot,omitempty"`
	// Next is the step that attach or restore would do next; empty: none.
	Next string `json:"next,omitempty"`
	// Counts are how many frames went which way, in mode steer.
	Counts []steer.Count `json:"counts,omitempty"`
	// OVSDB says what is wrong with Open vSwitch's database.
	OVSDB string `json:"ovsdb,omitempty"`
}

// Status looks at journal and node, and changes nothing.
func (u *Uplink) Status(ctx context.Context) (Status, error) {
	j := u.journal
	if j == nil {
		return Status{Phase: Detached}, nil
	}
	s := Status{Phase: j.Phase, NIC: j.NIC.Name, Bridge: j.Bridge.Name, Reason: j.Reason, Since: j.Written,
		OtherBoot: j.BootID != u.bootID, Yielded: j.Yielded != "", Mode: j.mode(), NotSteer: j.NotSteer}
	o, dbErr, err := u.observe(ctx)
	if err != nil {
		return s, err
	}
	if s.Counts, err = u.Counts(); err != nil {
		return s, err
	}
	if dbErr != nil {
		s.OVSDB = dbErr.Error()
	}
	if next := Next(*j, o); next.Name != "" {
		s.Next = next.String()
	}
	return s, nil
}

func (s Status) String() string {
	if s.NIC == "" {
		return "detached: nothing was attached on this node\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: NIC %s, mode %s, bridge %s, since %s\n", s.Phase, s.NIC, s.Mode, s.Bridge, s.Since.Format(time.RFC3339))
	if s.NotSteer != "" {
		fmt.Fprintf(&b, "not mode steer, because: %s\n", s.NotSteer)
	}
	if s.Reason != "" {
		fmt.Fprintf(&b, "reason: %s\n", s.Reason)
	}
	if s.Yielded {
		b.WriteString("the NIC is returned to the host while Open vSwitch is down; the agent attaches it again\n")
	}
	if s.OtherBoot {
		b.WriteString("the journal is from an earlier boot: its addresses are obsolete, its leftovers will be removed\n")
	}
	if s.OVSDB != "" {
		fmt.Fprintf(&b, "Open vSwitch's database: %s\n", s.OVSDB)
	}
	if s.Next != "" {
		fmt.Fprintf(&b, "incomplete, next step: %s\n", s.Next)
	}
	for _, c := range s.Counts {
		fmt.Fprintf(&b, "frames from %-9s %-11s %12d (%d bytes)\n", c.Source, "to "+c.Way, c.Frames, c.Bytes)
	}
	return b.String()
}
