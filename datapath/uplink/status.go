package uplink

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
	"github.com/fairlead-cni/fairlead/datapath/uplink/steer"
)

// ByHand is the reason of a requested restore.
const ByHand = "restored manually"

// Rebooted is the reason of an uplink that a reboot has detached.
const Rebooted = "the node was rebooted"

// Status is what the journal says and what is observed.
type Status struct {
	// Phase is the journal's; "detached" where there is none.
	Phase  Phase  `json:"phase"`
	NIC    string `json:"nic,omitempty"`
	Bridge string `json:"bridge,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Mode is api.UplinkSteer or api.UplinkBridge; NotSteer is why mode auto has not chosen steer.
	Mode     string `json:"mode,omitempty"`
	NotSteer string `json:"notSteer,omitempty"`
	// Since is when the journal was last written.
	Since time.Time `json:"since,omitzero"`
	// Yielded: it is attached again when another ovs-vswitchd runs.
	Yielded bool `json:"yielded,omitempty"`
	// RetryAt is when the NIC may be attached again after an attach was undone; Unreached: because the network was
	// unreachable.
	RetryAt   time.Time `json:"retryAt,omitzero"`
	Unreached bool      `json:"unreached,omitempty"`
	// OtherBoot: the journal is of an earlier boot.
	OtherBoot bool `json:"otherBoot,omitempty"`
	// Next is the next step of the attach or restore; empty: none.
	Next string `json:"next,omitempty"`
	// Counts are the frame counters of mode steer.
	Counts []steer.Count `json:"counts,omitempty"`
	// OVSDB says what is wrong with Open vSwitch's database, Journal what is wrong with the journal: it cannot be written
	// to disk, or was damaged.
	OVSDB   string `json:"ovsdb,omitempty"`
	Journal string `json:"journal,omitempty"`
}

// Status reads journal and node. It changes nothing, but tests whether a file can be written to the journal's disk.
func (u *Uplink) Status(ctx context.Context) (Status, error) {
	r := journal.Read(u.path, u.bootID)
	if err := u.discardOutdated(&r); err != nil {
		return Status{}, err
	}
	if u.journal = r.Newest; u.journal == nil {
		var err error
		if u.journal, err = u.rebuildJournal(ctx, r); err != nil {
			return Status{}, err
		}
	}
	s := Status{Phase: Detached}
	if err := errors.Join(r.Err, u.tryDisk()); err != nil {
		s.Journal = err.Error()
	}
	j := u.journal
	if j == nil {
		return s, nil
	}
	if _, err := u.followName(); err != nil {
		return s, err
	}
	s.Phase, s.NIC, s.Bridge, s.Reason, s.Since = j.Phase, j.NIC.Name, j.Bridge.Name, j.Reason, j.Written
	s.OtherBoot, s.Yielded, s.Mode, s.NotSteer = j.BootID != u.bootID, j.Yielded != "", j.UplinkMode(), j.NotSteer
	if u.Postponed() {
		s.RetryAt, s.Unreached = j.RetryAt, j.Unreached
	}
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
	var b strings.Builder
	if s.NIC == "" {
		b.WriteString("detached: nothing was attached on this node\n")
		s.journal(&b)
		return b.String()
	}
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
	if !s.RetryAt.IsZero() {
		once := ""
		if s.Unreached {
			once = ", once the default gateway or the API server answers"
		}
		fmt.Fprintf(&b, "the agent attaches the NIC again after %s%s\n", s.RetryAt.Format(time.RFC3339), once)
	}
	if s.OtherBoot {
		b.WriteString("the journal is from an earlier boot: its addresses are obsolete, its leftovers will be removed\n")
	}
	s.journal(&b)
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

func (s Status) journal(b *strings.Builder) {
	for line := range strings.Lines(s.Journal) {
		fmt.Fprintf(b, "journal: %s\n", strings.TrimSpace(line))
	}
}
