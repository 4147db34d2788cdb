package uplink

import (
	"slices"

	"github.com/fairlead-cni/fairlead/api"
)

// Observed is the node's current state, as far as Next needs it.
type Observed struct {
	// SameBoot: the journal is of this boot. What the NIC had in another boot is obsolete.
	SameBoot bool
	// NIC: it exists.
	NIC bool
	// RowsKnown: the database could be read. Bridge: it has br-uplink as wanted; Rows: it has at least parts of br-uplink.
	// Port: the NIC is a port of it. Wrong lists what differs from what is wanted.
	RowsKnown, Bridge, Rows, Port bool
	Wrong                         []string
	// Taken: Open vSwitch receives the NIC's frames.
	Taken bool
	// Device: the interface br-uplink exists. Ready: it is up, with the NIC's MAC and MTU, and so is the NIC. Bare: it has
	// no addresses.
	Device, Ready, Bare bool
	// OnDevice and OnNIC say whether all that the host had is there.
	OnDevice, OnNIC Moved
	// NICBare: the NIC has no addresses and generates none. NICWhole: everything on it is as before.
	NICBare, NICWhole bool
	// Mutes: the kernel receives the NIC's frames as well as the datapath. Muted: they are dropped there.
	Mutes, Muted bool
	// Steered: all programs of mode steer are attached, and the NIC is promiscuous. Steering: part of that is in place.
	Steered, Steering bool
	// Failed are steps that have failed in this run. They are skipped for now.
	Failed []string
}

// Moved is what moves between the NIC and br-uplink.
type Moved struct{ Addresses, Routes bool }

// Step is one step forward, or its undoing (Back). The zero Step means that none is left.
type Step struct {
	Name string
	Back bool
}

// Names of steps.
const (
	stepNIC       = "nic"
	stepBridge    = "bridge"
	stepDevice    = "device"
	stepAddresses = "addresses"
	stepPort      = "port"
	stepRoutes    = "routes"
	stepMute      = "mute"
	stepClear     = "clear"
	stepVerify    = "verify"
)

// Steps returns, in order, the values that a journal's Step may have in a mode on the way to attached, or on the way
// back. Some are skipped if there is nothing to do.
func Steps(mode string, back bool) []string {
	steps := []string{"begin"}
	for _, f := range facts(mode) {
		if f.name != stepNIC {
			steps = append(steps, f.name)
		}
	}
	if !back {
		return steps
	}
	undoings := []string{"restore"}
	if mode != api.UplinkSteer {
		steps[0] = stepNIC
	}
	for _, name := range slices.Backward(steps) {
		if name != "begin" && name != stepDevice && name != stepVerify {
			undoings = append(undoings, Step{name, true}.String())
		}
	}
	return append(undoings, "detached")
}

// fact is one step for Next: when it is done, and when it is undone.
type fact struct {
	name         string
	done, undone func(Journal, Observed) bool
}

func facts(mode string) []fact {
	if mode == api.UplinkSteer {
		return steerFacts()
	}
	return bridgeFacts()
}

// The order leaves the node without its network for the shortest time. The host's addresses are on both interfaces
// while the NIC becomes a port, so packets are accepted on either, and routes follow at once. Undoing is the reverse.
func bridgeFacts() []fact {
	always := func(Journal, Observed) bool { return true }
	// What the NIC had in another boot is not restored, nor what was on a NIC that is gone.
	void := func(o Observed) bool { return !o.SameBoot || !o.NIC }
	return []fact{
		// The NIC's other properties; they are not changed on purpose, so this is first and undone last.
		{stepNIC, always, func(_ Journal, o Observed) bool { return void(o) || o.NICWhole }},
		// An unreadable database does not mean that the bridge is gone.
		{stepBridge, func(_ Journal, o Observed) bool { return o.Bridge || !o.RowsKnown && o.Device },
			func(_ Journal, o Observed) bool { return !o.Rows && !o.Device }},
		{stepDevice, func(_ Journal, o Observed) bool { return o.Ready }, always},
		{stepAddresses, func(_ Journal, o Observed) bool { return o.OnDevice.Addresses },
			func(_ Journal, o Observed) bool { return o.Bare }},
		{stepPort, func(_ Journal, o Observed) bool { return (o.Port || !o.RowsKnown) && o.Taken },
			func(_ Journal, o Observed) bool { return !o.Port && !o.Taken }},
		{stepRoutes, func(_ Journal, o Observed) bool { return o.OnDevice.Routes },
			func(_ Journal, o Observed) bool { return void(o) || o.OnNIC.Routes }},
		{stepMute, func(_ Journal, o Observed) bool { return o.Muted || !o.Mutes },
			func(_ Journal, o Observed) bool { return !o.Muted }},
		{stepClear, func(_ Journal, o Observed) bool { return o.NICBare },
			func(_ Journal, o Observed) bool { return void(o) || o.OnNIC.Addresses }},
		{stepVerify, func(j Journal, _ Observed) bool { return j.Phase == Attached }, always},
	}
}

// Next returns what to do: forward while the journal says Attaching or Attached, the first step that is not done; back
// while it says Restoring, the last that is not undone; and nothing if it says Detached. A journal of another boot
// leads back in any case.
func Next(j Journal, o Observed) Step {
	list := facts(j.UplinkMode())
	switch {
	case j.Phase == Detached && o.SameBoot:
		return Step{}
	case goesBack(j, o):
		slices.Reverse(list)
		for _, f := range list {
			if !f.undone(j, o) && !slices.Contains(o.Failed, f.name) {
				return Step{f.name, true}
			}
		}
	default:
		for _, f := range list {
			if !f.done(j, o) {
				return Step{f.name, false}
			}
		}
	}
	return Step{}
}

func goesBack(j Journal, o Observed) bool { return j.Phase == Restoring || !o.SameBoot }

// undone reports whether everything is restored, including steps that are skipped for now.
func undone(j Journal, o Observed) bool {
	return !slices.ContainsFunc(facts(j.UplinkMode()), func(f fact) bool { return !f.undone(j, o) })
}
