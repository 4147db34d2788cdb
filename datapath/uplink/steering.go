package uplink

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
	"github.com/fairlead-cni/fairlead/datapath/uplink/gateways"
	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/preflight"
	"github.com/fairlead-cni/fairlead/datapath/uplink/steer"
)

// DefaultPins is where the programs of mode steer are pinned on every node.
const DefaultPins = steer.BPFFS + "/fairlead-uplink"

// stepSteer attaches the programs of mode steer.
const stepSteer = "steer"

// steerFacts are the steps of mode steer. None of the host's configuration moves. The NIC's frames reach the bridge
// last, when all is in place, and are taken from it first.
func steerFacts() []fact {
	var list []fact
	for _, f := range bridgeFacts() {
		switch f.name {
		case stepBridge, stepDevice, stepVerify:
			list = append(list, f)
		}
		if f.name == stepDevice {
			list = append(list, fact{stepSteer, func(_ Journal, o Observed) bool { return o.Steered },
				func(_ Journal, o Observed) bool { return !o.Steering }})
		}
	}
	return list
}

// steered returns the wanted configuration of the programs, given the journal and the current interfaces.
func (u *Uplink) steered() (steer.Config, error) {
	c := steer.Config{Dir: u.journal.Pins, Hooks: u.journal.Hooks}
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return c, fmt.Errorf("listing interfaces: %w", err)
	}
	for _, l := range links {
		switch l.Attrs().Name {
		case u.journal.NIC.Name:
			c.NIC, c.Hosts = l.Attrs().Index, steer.MACs(l, links)
		case u.journal.Bridge.Name:
			c.Port = l.Attrs().Index
		}
	}
	return c, nil
}

// observeSteer adds what mode steer needs. nic and device may be nil.
func (u *Uplink) observeSteer(o *Observed, nic, device netlink.Link) error {
	if device != nil {
		a := device.Attrs()
		disabled, err := hoststate.Sysctl(a.Name, hoststate.DisableIPv6)
		o.Ready = a.RawFlags&unix.IFF_UP != 0 && a.MTU == u.journal.Bridge.MTU && (err != nil || disabled == "1")
	}
	c, err := u.steered()
	if err != nil {
		return err
	}
	s, err := c.State()
	if err != nil && !goesBack(*u.journal, *o) {
		return err
	}
	promisc := nic != nil && nic.Attrs().RawFlags&unix.IFF_PROMISC != 0
	o.Steered = s.Complete && promisc
	o.Steering = err != nil || s.Left || promisc && o.SameBoot && u.journal.NIC.Flags&unix.IFF_PROMISC == 0
	return nil
}

// readyPort sets the bridge's own port up. The host generates no address there, and requests none.
func (u *Uplink) readyPort(device netlink.Link) error {
	if kernel.HasIPv6() {
		if err := hoststate.SetSysctl(device.Attrs().Name, hoststate.DisableIPv6, "1"); err != nil {
			return err
		}
	}
	return u.setUp(device)
}

// steer attaches the programs, and makes the NIC promiscuous.
func (u *Uplink) steer() error {
	nic, err := u.nic()
	if err != nil {
		return err
	}
	if _, err := u.device(); err != nil {
		return err
	}
	c, err := u.steered()
	if err != nil {
		return err
	}
	if err := c.Ensure(); err != nil {
		return err
	}
	if err := netlink.SetPromiscOn(nic); err != nil {
		return fmt.Errorf("setting %s promiscuous: %w", nic.Attrs().Name, err)
	}
	return nil
}

// stopSteering removes the programs, and clears the NIC's flag if the host had not set it.
func (u *Uplink) stopSteering() error {
	c, err := u.steered()
	if err != nil {
		return err
	}
	err = c.Remove()
	if nic, nerr := findLink(u.journal.NIC.Name); nerr != nil || nic == nil {
		err = errors.Join(err, nerr)
	} else if u.ThisBoot() && u.journal.NIC.Flags&unix.IFF_PROMISC == 0 {
		if perr := netlink.SetPromiscOff(nic); perr != nil {
			err = errors.Join(err, fmt.Errorf("clearing promiscuous mode of %s: %w", nic.Attrs().Name, perr))
		}
	}
	return err
}

// Counts returns the frame counters of mode steer.
func (u *Uplink) Counts() ([]steer.Count, error) {
	if u.journal == nil || u.journal.Pins == "" {
		return nil, nil
	}
	return steer.Config{Dir: u.journal.Pins}.Counts()
}

// Preflight checks whether p.NIC can be attached, and in which mode. It changes nothing.
func (u *Uplink) Preflight(ctx context.Context, p Plan) (preflight.Report, error) {
	if u.Attached() && u.journal.NIC.Name == p.NIC {
		r := preflight.NewReport(p.NIC, u.journal.UplinkMode())
		r.Notes = []string{"it is already attached (uplink status)"}
		return r, nil
	}
	return chosen(ctx, p)
}

// chosen returns the mode in which to attach p.NIC, with its preflight report. If mode auto does not choose steer, the
// report says why.
func chosen(ctx context.Context, p Plan) (preflight.Report, error) {
	nic := preflight.NIC{Name: p.NIC, Datapath: p.Datapath, OVSRunDir: p.OVSRunDir, Pins: p.pins(), Tunnels: p.Tunnels,
		AllowManaged: p.AllowManaged}
	if p.Mode == api.UplinkBridge || p.Mode == "" {
		return preflight.Bridge(ctx, nic)
	}
	r, err := preflight.Steer(ctx, nic)
	if p.Mode == api.UplinkSteer || err != nil || len(r.Refused) == 0 {
		return r, err
	}
	why := strings.Join(r.Refused, "; ")
	if r, err = preflight.Bridge(ctx, nic); err == nil {
		r.NotSteer = why
	}
	return r, err
}

func (p Plan) pins() string {
	if p.Pins == "" {
		return DefaultPins
	}
	return p.Pins
}

// CheckGateways is gateways.Check for the interface that has the host's addresses.
func (u *Uplink) CheckGateways(ctx context.Context) error {
	if u.journal == nil {
		return gateways.ErrNone
	}
	return gateways.Check(ctx, u.holder())
}

// GatewaysIfAny is CheckGateways, but succeeds if there is no gateway.
func (u *Uplink) GatewaysIfAny(ctx context.Context) error {
	if err := u.CheckGateways(ctx); !errors.Is(err, gateways.ErrNone) {
		return err
	}
	return nil
}
