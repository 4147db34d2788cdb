package apply

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
)

const (
	// portTimeout is how long a new port may take to get its OpenFlow port number.
	portTimeout = 5 * time.Second
	// tunnelTimeout is how long this node's pods may wait for the tunnel.
	tunnelTimeout = 2 * time.Second
)

// OVSDB applies the bridge, its ports and the pods' records. It removes nothing: see Stale.
type OVSDB struct {
	db     *ovsdb.DB
	runDir string
	// wanted is the last round's, and had is what was in place at its end: ovs-vswitchd gets the timeouts of zones only
	// once it has taken what comes before them (ovsdb.Zones).
	wanted, had ovsdb.Desired
}

// NewOVSDB returns the applier for a database. runDir is Open vSwitch's run directory.
func NewOVSDB(db *ovsdb.DB, runDir string) *OVSDB { return &OVSDB{db: db, runDir: runDir} }

// Name implements Applier.
func (*OVSDB) Name() string { return "ovsdb" }

// Apply implements Applier. It first restores what was there, so that what is missing can be reported, and returns when
// the gateway has its port number.
func (o *OVSDB) Apply(ctx context.Context, r *Round) (c Changes, err error) {
	if r.Settled {
		if c.Repaired, err = o.db.Ensure(ctx, o.had); err != nil {
			return c, fmt.Errorf("OVSDB: %w", err)
		}
	}
	want := r.Want.OVSDB
	want.Zones.Start = vswitchd.RunningStartID(o.runDir)
	if c.Wanted, err = o.db.Ensure(ctx, want); err != nil {
		return c, fmt.Errorf("OVSDB: %w", err)
	}
	if err := o.remember(want); err != nil {
		return c, fmt.Errorf("OVSDB: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	return c, o.db.WaitOFPorts(ctx, r.Want.OVSDB.Gateway.Name)
}

// remember keeps what a round wanted, and how much of it is in place.
func (o *OVSDB) remember(d ovsdb.Desired) error {
	obs, err := o.db.Observe(d.Bridge)
	if err != nil {
		return err
	}
	o.wanted, o.had = d, d
	o.had.Zones.Numbers = slices.DeleteFunc(slices.Clone(d.Zones.Numbers), func(number uint16) bool {
		return !slices.Contains(obs.Zones, number)
	})
	return nil
}

// NeedsVerify implements Watcher.
func (*OVSDB) NeedsVerify(ovsdb.Observed) bool { return false }

// InPlace implements Watcher.
func (o *OVSDB) InPlace(ctx context.Context, obs ovsdb.Observed) bool {
	if obs.DatapathLost || len(obs.Broken)+len(obs.Foreign) > 0 {
		return false
	}
	differs, err := o.db.Differs(ctx, o.wanted)
	return err == nil && !differs
}

// Due implements Watcher.
func (*OVSDB) Due() bool { return false }

// Tunnel waits for the tunnel's port number when the tunnel is new. If ovs-vswitchd can't create it, this node's pods
// still get their flows; if it gets its number later, that is seen as a change of OVSDB.
type Tunnel struct {
	db   *ovsdb.DB
	last *ovsdb.TunnelPort
}

// NewTunnel returns the applier for a database.
func NewTunnel(db *ovsdb.DB) *Tunnel { return &Tunnel{db: db} }

// Name implements Applier.
func (*Tunnel) Name() string { return "tunnel" }

// Apply implements Applier.
func (t *Tunnel) Apply(ctx context.Context, r *Round) (c Changes, err error) {
	port := r.Want.OVSDB.Tunnel
	if port == nil {
		t.last = nil
		return c, nil
	}
	wait := time.Millisecond
	if t.last == nil || *t.last != *port {
		wait, t.last = tunnelTimeout, port
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if err := t.db.WaitOFPorts(ctx, port.Name); err != nil {
		return c, fmt.Errorf("pods of other nodes are not reached: %w", err)
	}
	return c, nil
}

// Stale releases the ports that are no longer wanted. It runs after the flows: a port number must have no flow of its
// last pod when the next pod gets it.
type Stale struct{ db *ovsdb.DB }

// NewStale returns the applier for a database.
func NewStale(db *ovsdb.DB) *Stale { return &Stale{db} }

// Name implements Applier.
func (*Stale) Name() string { return "ovsdb" }

// Apply implements Applier. It names the ports that the round releases: if such a record is removed externally
// meanwhile, the port is neither wanted nor on record.
func (s *Stale) Apply(ctx context.Context, r *Round) (c Changes, err error) {
	if c.Wanted, err = s.db.Prune(ctx, r.Want.OVSDB, r.Removed...); err != nil {
		return c, fmt.Errorf("OVSDB: %w", err)
	}
	return c, nil
}
