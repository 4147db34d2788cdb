package uplink

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"

	datapath "github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/standalone"
)

// reach is what Run remembers about an attached uplink between two checks: whether br-uplink is as it was created, and
// whether the host reaches its gateway or the API server.
type reach struct {
	bridge    *openflow.Switch // the connection to br-uplink; nil: none
	checkedAt time.Time
	// failed are the consecutive checks at which neither gateway nor API server answered. rebuilt: br-uplink was recreated
	// since the first. reported: it was logged that the uplink is not the cause.
	failed            int
	rebuilt, reported bool
}

// forget resets r when the host reaches them, or that cannot be judged.
func (r *reach) forget() { r.failed, r.rebuilt, r.reported = 0, false, false }

func (r *reach) close() {
	if r.bridge != nil {
		r.bridge.Close()
		r.bridge = nil
	}
}

// forwards reports whether Open vSwitch is up and forwards what it has flows for.
func (n *Uplink) forwards(ctx context.Context) bool {
	return vswitchd.Running(n.cfg.OVSRunDir) && !vswitchd.Hangs(ctx, n.cfg.OVSRunDir) && (n.Waits == nil || !n.Waits())
}

// revertFlows recreates br-uplink after an external change of its flows or of its ports' configuration, which is in no
// row of the database.
func (n *Uplink) revertFlows(ctx context.Context) (steps []string, err error) {
	differences, err := n.differences(ctx)
	if err != nil {
		n.reach.close()
		n.log.V(2).Info("the flows of "+datapath.BridgeName+" could not be read", "reason", err.Error())
		return nil, nil // ovs-vswitchd may be starting or stopping, which Repair and RunYield handle
	}
	if len(differences) == 0 {
		return nil, nil
	}
	n.log.Info("external change of the uplink's bridge, recreating it", "bridge", datapath.BridgeName,
		"differences", differences)
	n.reach.close()
	return n.uplink.Rebuild(ctx)
}

func (n *Uplink) differences(ctx context.Context) (d []string, err error) {
	if r := n.reach.bridge; r != nil {
		select {
		case <-r.Done():
			n.reach.close()
		default:
		}
	}
	if n.reach.bridge == nil {
		socket := filepath.Join(n.cfg.OVSRunDir, datapath.BridgeName+".mgmt")
		if n.reach.bridge, err = openflow.Dial(ctx, socket, logr.Discard()); err != nil {
			return nil, err
		}
	}
	return standalone.Differences(ctx, n.reach.bridge)
}

// checkReached checks whether the host reaches its gateway or the API server while the NIC is attached. If it does not,
// but the default gateway answers on the NIC itself, Open vSwitch is the cause: br-uplink is recreated, and if that
// does not help, the NIC is returned to the host. A gateway that is off costs only a few frames per check.
func (n *Uplink) checkReached(ctx context.Context) {
	r := &n.reach
	if r.failed == 0 && time.Since(r.checkedAt) < n.every.Uplink/2 { // the last check was for an event
		return
	}
	r.checkedAt = time.Now()
	if !n.forwards(ctx) || !n.uplink.Carrier() {
		r.forget()
		return
	}
	err := n.reached(ctx)
	switch {
	case ctx.Err() != nil:
		return
	case err == nil:
		if r.reported || r.rebuilt {
			n.log.Info("the default gateway or the API server answers again", "nic", n.state.Load().nic)
		}
		r.forget()
		return
	}
	if r.failed++; r.failed == 1 {
		n.check.Notify() // a lost frame is no reason to act
		return
	}
	if wire := n.uplink.OnWire(ctx); wire != nil {
		if !r.reported {
			n.log.Error(errors.Join(err, wire), "no gateway answers, with or without Open vSwitch; the NIC stays attached")
			r.reported = true
		}
		return
	}
	n.recreateOrRollBack(ctx, fmt.Errorf("the default gateway answers on the NIC itself, but not through Open vSwitch: %w", err))
}

// recreateOrRollBack recreates br-uplink, or, if that did not help, rolls the attach back.
func (n *Uplink) recreateOrRollBack(ctx context.Context, why error) {
	r := &n.reach
	if !r.rebuilt {
		r.rebuilt = true
		n.log.Error(why, "recreating the uplink's bridge", "bridge", datapath.BridgeName)
		r.close()
		steps, err := n.uplink.Rebuild(ctx)
		n.metrics.Loop.Drift.WithLabelValues("uplink").Add(float64(len(steps)))
		n.done(err)
		n.check.Notify()
		return
	}
	r.forget()
	n.done(n.uplink.RollBack(ctx, why, n.plan(n.nic)))
	n.Changed.Notify()
}
