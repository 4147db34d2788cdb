package uplink

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/rows"
	"github.com/fairlead-cni/fairlead/datapath/uplink/steer"
	"github.com/fairlead-cni/fairlead/internal/atomicfile"
)

// DefaultJournal is where the journal is on every node.
const DefaultJournal = "/var/lib/fairlead/uplink.json"

// version is of the journal's form.
const version = 1

// Phase is where the uplink is going, or has come to.
type Phase string

// The phases. Without a journal the uplink is detached, too.
const (
	// Attaching: steps forward, up to the check that the node is reached through br-uplink.
	Attaching Phase = "attaching"
	// Attached: the check has succeeded. What somebody changes is put back.
	Attached Phase = "attached"
	// Restoring: steps back.
	Restoring Phase = "restoring"
	Detached  Phase = "detached"
)

// Journal is what has to outlive the process.
type Journal struct {
	Version int    `json:"version"`
	BootID  string `json:"bootID"`
	Phase   Phase  `json:"phase"`
	// Reason says why the uplink is being restored or is detached. Unreached: because
	// nobody answered after an attach.
	Reason    string `json:"reason,omitempty"`
	Unreached bool   `json:"unreached,omitempty"`
	// Yielded: the host has its NIC back only as long as Open vSwitch is away. It is the start of ovs-vswitchd that was to
	// end (vswitchd.RunningStartID), or "none". Empty: not yielded.
	Yielded string `json:"yielded,omitempty"`
	// Step is the step that was begun last.
	Step string `json:"step,omitempty"`
	// Written is when this was written.
	Written time.Time `json:"written"`
	// Mode is api.UplinkSteer or api.UplinkBridge; empty: bridge. NotSteer is why mode auto has not taken steer.
	Mode     string `json:"mode,omitempty"`
	NotSteer string `json:"notSteer,omitempty"`
	// Pins is the directory in which mode steer's programs are pinned, Hooks the kind of hooks that they have.
	Pins  string      `json:"pins,omitempty"`
	Hooks steer.Hooks `json:"hooks,omitempty"`
	// NIC is all that the host had on the NIC before the first step. In mode steer that stays there, and is left out.
	NIC    hoststate.Link `json:"nic"`
	Bridge rows.Bridge    `json:"bridge"`
	DB     rows.DB        `json:"db"`
}

// Check refuses a journal that this program has not written.
func (j Journal) Check() error {
	if j.Version != version {
		return fmt.Errorf("it has version %d, but this program supports %d: use the program that wrote it", j.Version, version)
	}
	switch j.Phase {
	case Attaching, Attached, Restoring, Detached:
	default:
		return fmt.Errorf("unknown phase %q", j.Phase)
	}
	switch {
	case j.Mode == api.UplinkSteer && j.Pins != "", j.Mode == api.UplinkBridge, j.Mode == "":
	default:
		return fmt.Errorf("unknown mode %q with programs in %q", j.Mode, j.Pins)
	}
	if j.BootID == "" || j.Bridge.Name == "" || j.DB.RunDir == "" {
		return errors.New("it has no boot ID, bridge or run directory")
	}
	return j.NIC.Check()
}

// readJournal returns nil if there is none.
func readJournal(path string) (*Journal, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the uplink's journal: %w", err)
	}
	var j Journal
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err = d.Decode(&j)
	if err == nil && d.More() {
		err = errors.New("trailing data after the object")
	}
	if err == nil {
		err = j.Check()
	}
	if err != nil {
		return nil, fmt.Errorf("reading the uplink's journal %s: %w", path, err)
	}
	return &j, nil
}

// errJournal is in each error of a journal that could not be written.
var errJournal = errors.New("writing the uplink's journal")

// write puts the journal into its file so that a crash of the machine leaves the old one or the new one.
func (j *Journal) write(path string) error {
	j.Written = time.Now()
	text, err := json.MarshalIndent(j, "", " ")
	if err != nil {
		return fmt.Errorf("%w: %w", errJournal, err)
	}
	if err := atomicfile.Write(path, text, 0o600); err != nil {
		return fmt.Errorf("%w: %w", errJournal, err)
	}
	return nil
}
