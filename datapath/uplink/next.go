package uplink

import (
	"slices"

	"github.com/fairlead-cni/fairlead/api"
)

// Observed is what the node looks like now, as far as Next has to know.
type Observed struct {
	// SameBoot: the journal is of this boot. What another boot had on the NIC is void.
	SameBoot bool
	// NIC: it is there.
	NIC bool
	// RowsKnown: the database could be read. Bridge: br-uplink is in it as it should be; Rows: something of it is. Port:
	// the NIC is a port of it. Wrong is what of it is not as it should be.
	RowsKnown, Bridge, Rows, Port bool
	Wrong                         []string
	// Taken: the NIC's frames go to Open vSwitch.
	Taken bool
	// Device: the interface br-uplink is there. Ready: it is up, with the NIC's MAC and MTU, and so is the NIC. Bare: it
	// has no addresses.
	Device, Ready, Bare bool
	// OnDevice and OnNIC say of what the host had whether all of it is there.
	OnDevice, OnNIC Moved
	// NICBare: the NIC has no addresses and makes none. NICWhole: everything on it is as it was.
	NICBare, NICWhole bool
	// Mutes: the datapath leaves the NIC's frames to the kernel as well. Muted: they are dropped there.
	Mutes, Muted bool
	// Steered: the programs of mode steer are attached, all of them, and the NIC receives what is not for itself.
	// Steering: something of that is there.
	Steered, Steering bool
	// Failed are steps that were tried in vain since somebody last asked. They are left out for now.
	Failed []string
}

// Moved is what moves between NIC and br-uplink.
type Moved struct{ Addresses, Routes bool }

// Step is one step forward, or its undoing (Back). The zero Step means that there is none left to do.
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

// Steps are the words that a journal's Step may have in a mode on the way to attached, or on the way back, in their
// order. Some are left out where there is nothing to do.
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

// fact is one step as Next sees it: when it is done, and when it is undone.
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

// The order is the one that leaves the node without its network for the shortest time. The host's addresses are on both
// interfaces while the NIC becomes a port, so that packets are taken on whichever they arrive, and routes follow at
// once. Undoing is the reverse.
func bridgeFacts() []fact {
	always := func(Journal, Observed) bool { return true }
	// What was on the NIC in another boot is not put back, nor is what was on one that is gone.
	void := func(o Observed) bool { return !o.SameBoot || !o.NIC }
	return []fact{
		// The NIC's other properties; nothing is done to them on purpose, so it stands first and is undone last.
		{stepNIC, always, func(_ Journal, o Observed) bool { return void(o) || o.NICWhole }},
		// A database that can't be read is no reason to believe that the bridge is gone.
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

// Next says what to do: forward while the journal says Attaching or Attached, the first step that is not done; back
// while it says Restoring, the last that is not undone; and nothing where it says Detached. A journal of another boot
// leads back, whatever it says.
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

// undone reports whether everything is back, also steps that are left out for now.
func undone(j Journal, o Observed) bool {
	return !slices.ContainsFunc(facts(j.UplinkMode()), func(f fact) bool { return !f.undone(j, o) })
}
