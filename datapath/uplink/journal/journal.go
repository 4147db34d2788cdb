// Package journal is the record of an uplink: what the host had on its NIC, and the last step begun. It is in two
// files: on disk, and in memory below /run until the next boot. So a disk that is full, read-only or damaged, or a
// deleted directory, loses neither the record of the host's network nor a restore in progress.
package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/rows"
	"github.com/fairlead-cni/fairlead/datapath/uplink/steer"
)

// Default is where the journal is on every node.
const Default = "/var/lib/fairlead/uplink.json"

// Version is the version of the journal's format.
const Version = 1

// Phase is the uplink's state, or the one that it is changing to.
type Phase string

// The phases. Without a journal the uplink is detached as well.
const (
	// Attaching: steps forward, up to the check that the node is reachable through br-uplink.
	Attaching Phase = "attaching"
	// Attached: the check has succeeded. External changes are reverted.
	Attached Phase = "attached"
	// Restoring: steps back.
	Restoring Phase = "restoring"
	Detached  Phase = "detached"
)

// Journal is what must outlive the process.
type Journal struct {
	Version int `json:"version"`
	// Sum is the CRC-32, in hex, of the text with a zero sum. Journals of earlier versions have none.
	Sum string `json:"sum"`
	// Seq increments with each write, so the newer of two files is known regardless of the clock.
	Seq    uint64 `json:"seq"`
	BootID string `json:"bootID"`
	Phase  Phase  `json:"phase"`
	// Reason says why the uplink is being restored or is detached. Unreached: because the network was unreachable after an
	// attach. Failed: because an attach failed before that, or with Open vSwitch.
	Reason    string `json:"reason,omitempty"`
	Unreached bool   `json:"unreached,omitempty"`
	Failed    bool   `json:"failed,omitempty"`
	// Tries is how many consecutive attaches were undone, RetryAt when the NIC may be attached again.
	Tries   int       `json:"tries,omitempty"`
	RetryAt time.Time `json:"retryAt,omitzero"`
	// Yielded: the NIC is restored only while Open vSwitch is down. It is the start of the ovs-vswitchd that was ending
	// (vswitchd.RunningStartID), "none", or "hangs" if it does not answer. Empty: not yielded.
	Yielded string `json:"yielded,omitempty"`
	// Step is the last step begun.
	Step string `json:"step,omitempty"`
	// Written is when this was written.
	Written time.Time `json:"written"`
	// Mode is api.UplinkSteer or api.UplinkBridge; empty: bridge. NotSteer is why mode auto has not chosen steer.
	Mode     string `json:"mode,omitempty"`
	NotSteer string `json:"notSteer,omitempty"`
	// Pins is the directory in which mode steer's programs are pinned, Hooks the kind of their hooks.
	Pins  string      `json:"pins,omitempty"`
	Hooks steer.Hooks `json:"hooks,omitempty"`
	// NIC is all that the host had on the NIC before the first step. In mode steer it stays there and is not recorded.
	NIC    hoststate.Link `json:"nic"`
	Bridge rows.Bridge    `json:"bridge"`
	DB     rows.DB        `json:"db"`
}

// Check rejects a journal with which this program cannot go forward.
func (j Journal) Check() error {
	if j.Version != Version {
		return fmt.Errorf("it has version %d, but this program supports %d", j.Version, Version)
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

// zeroSum is the sum field in the text over which the sum is computed.
const zeroSum = "00000000"

func sumField(sum string) []byte { return []byte(`"sum": "` + sum + `"`) }

// Encode returns the journal's text, and sets its sum.
func Encode(j *Journal) ([]byte, error) {
	j.Sum = zeroSum
	text, err := json.MarshalIndent(j, "", " ")
	if err != nil {
		return nil, err
	}
	j.Sum = fmt.Sprintf("%08x", crc32.ChecksumIEEE(text))
	return bytes.Replace(text, sumField(zeroSum), sumField(j.Sum), 1), nil
}

// Parse reads a journal. Unknown fields are a newer program's, and ignored. With an error it still returns what can be
// read: enough to go back, together with what the kernel and OVSDB have.
func Parse(text []byte) (*Journal, error) {
	var j Journal
	err := json.Unmarshal(text, &j)
	if err == nil && j.Sum != "" {
		plain := bytes.Replace(text, sumField(j.Sum), sumField(zeroSum), 1)
		if sum := fmt.Sprintf("%08x", crc32.ChecksumIEEE(plain)); sum != j.Sum {
			err = fmt.Errorf("its checksum is %s, not %s: it is damaged, or was edited", sum, j.Sum)
		}
	}
	if err == nil {
		err = j.Check()
	}
	if err == nil {
		return &j, nil
	}
	return readable(text), err
}

// readable returns what can be read of a damaged journal.
func readable(text []byte) *Journal {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	tree, _ := decodePrefix(d)
	if m, ok := tree.(map[string]any); ok {
		delete(m, "written") // an invalid time ends the decoding
	}
	var j Journal
	if text, err := json.Marshal(tree); err == nil {
		_ = json.Unmarshal(text, &j) // fields of another type are left out
	}
	damaged := func(o hoststate.Object) bool { return o.Check() != nil }
	for _, list := range []*[]hoststate.Object{&j.NIC.Addresses, &j.NIC.Routes, &j.NIC.Rules, &j.NIC.Neighbours} {
		*list = slices.DeleteFunc(*list, damaged)
	}
	return &j
}

// decodePrefix decodes a JSON text up to where it is damaged or ends early; whole: it is neither.
func decodePrefix(d *json.Decoder) (value any, whole bool) {
	token, err := d.Token()
	if err != nil {
		return nil, false
	}
	switch token {
	case json.Delim('{'):
		m := map[string]any{}
		for d.More() {
			key, err := d.Token()
			name, ok := key.(string)
			if err != nil || !ok {
				return m, false
			}
			if m[name], whole = decodePrefix(d); !whole {
				return m, false
			}
		}
		_, err = d.Token()
		return m, err == nil
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, whole := decodePrefix(d)
			if list = append(list, v); !whole {
				return list, false
			}
		}
		_, err = d.Token()
		return list, err == nil
	}
	return token, true
}

// Holder returns the interface that has the host's addresses while the uplink is attached.
func (j Journal) Holder() string {
	if j.UplinkMode() == api.UplinkSteer {
		return j.NIC.Name
	}
	return j.Bridge.Name
}

// UplinkMode returns the mode; journals written before there were two modes have bridge.
func (j Journal) UplinkMode() string {
	if j.Mode == "" {
		return api.UplinkBridge
	}
	return j.Mode
}

// LeaveWithHost leaves out what stays on the NIC in mode steer.
func LeaveWithHost(j *Journal) {
	j.NIC.Addresses, j.NIC.Routes, j.NIC.Rules, j.NIC.Neighbours, j.NIC.Sysctls = nil, nil, nil, nil, nil
}
