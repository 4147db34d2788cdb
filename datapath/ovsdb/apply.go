package ovsdb

import (
	"context"
	"fmt"
)

// Ensure makes the bridge and its ports what d says, in one transaction, and
// in none when nothing is missing or different. It removes nothing: see Prune.
// It does not wait for ovs-vswitchd: see WaitOFPorts.
//
// A bridge of that name that is somebody else's is refused if it has ports,
// and taken over if it has none. The call ends with ctx, and after 10 seconds
// if ctx has no deadline.
func (db *DB) Ensure(ctx context.Context, d Desired) error {
	if err := db.apply(ctx, func(s snapshot) (plan, error) { return ensure(s, d) }); err != nil {
		return fmt.Errorf("bridge %s: %w", d.Bridge, err)
	}
	return nil
}

// Prune removes from the bridge the ports that are ours and that d does not
// have. A port whose record cannot be read stays while it has a device.
func (db *DB) Prune(ctx context.Context, d Desired) error {
	if err := db.apply(ctx, func(s snapshot) (plan, error) { return prune(s, d), nil }); err != nil {
		return fmt.Errorf("removing ports of bridge %s: %w", d.Bridge, err)
	}
	return nil
}

func (db *DB) apply(ctx context.Context, planFor func(snapshot) (plan, error)) error {
	ctx, cancel := limit(ctx)
	defer cancel()
	c, err := db.await(ctx)
	if err != nil {
		return err
	}
	s, err := db.snapshot(ctx, c)
	if err != nil {
		return err
	}
	p, err := planFor(s)
	if err != nil || len(p.ops) == 0 {
		return err
	}
	if _, err := c.transact(ctx, p.ops); err != nil {
		return err
	}
	for _, change := range p.changes {
		db.log.Info("OVSDB changed", "change", change)
	}
	return nil
}
