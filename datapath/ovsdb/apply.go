package ovsdb

import (
	"context"
	"fmt"
)

// Ensure creates or updates the bridge and its ports as d says, in one transaction, or none if nothing is missing or
// different. It removes nothing: see Prune. It does not wait for ovs-vswitchd: see WaitOFPorts.
//
// A bridge of that name that is not Fairlead's is refused if it has ports, and taken over if it has none. The call ends
// with ctx, and after 10 seconds if ctx has no deadline. It returns a description of what it changed.
func (db *DB) Ensure(ctx context.Context, d Desired) (changes []string, err error) {
	changes, err = db.apply(ctx, func(s snapshot) (plan, error) { return ensure(s, d) })
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", d.Bridge, err)
	}
	return changes, nil
}

// Prune removes from the bridge Fairlead's ports that d does not have. Pods' ports are retired: their record is removed
// at once, the port by RemoveRetired. A port whose record cannot be read stays while it has a device. Ports named in
// gone are removed even if an external change has removed their mark.
func (db *DB) Prune(ctx context.Context, d Desired, gone ...string) (changes []string, err error) {
	changes, err = db.apply(ctx, func(s snapshot) (plan, error) { return prune(s, d, gone), nil })
	if err != nil {
		return nil, fmt.Errorf("removing ports of bridge %s: %w", d.Bridge, err)
	}
	return changes, nil
}

// Differs reports whether Ensure or Prune would change anything.
func (db *DB) Differs(ctx context.Context, d Desired) (bool, error) {
	ctx, cancel := limit(ctx)
	defer cancel()
	_, s, err := db.snapshot(ctx)
	if err != nil {
		return false, err
	}
	p, err := ensure(s, d)
	return len(p.ops) > 0 || len(prune(s, d, nil).ops) > 0, err
}

func (db *DB) apply(ctx context.Context, planFor func(snapshot) (plan, error)) (changes []string, err error) {
	ctx, cancel := limit(ctx)
	defer cancel()
	c, s, err := db.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	p, err := planFor(s)
	if err != nil || len(p.ops) == 0 {
		return nil, err
	}
	if _, err := c.transact(ctx, p.ops); err != nil {
		return nil, err
	}
	return p.changes, nil
}
