package ovsdb

import (
	"context"
	"errors"
	"fmt"

	"github.com/ovn-org/libovsdb/ovsdb"

	"github.com/fairlead-cni/fairlead/datapath/internal/ovsop"
)

// restoreWaitKey in other_config of the Open_vSwitch row makes ovs-vswitchd, when it starts, keep the datapath's flows
// and handle no new ones until the key is removed (ovs-vswitchd.conf.db(5)). It applies to every bridge. Once a running
// ovs-vswitchd has seen it absent, it ignores it.
const restoreWaitKey = "flow-restore-wait"

// restoreWaitOurs is the value that Fairlead sets; all others write "true". Open vSwitch does not mind the case
// (smap_get_bool).
const restoreWaitOurs = "True"

// restoredKey in external_ids of the Open_vSwitch row names the start of ovs-vswitchd that was last released from its
// wait. The guard beside ovs-vswitchd reads it.
const restoredKey = "fairlead-restored"

// RestoreWait says for whom ovs-vswitchd will wait at its next start or, if the key has been set ever since it started,
// waits now.
type RestoreWait struct {
	// Set: it waits. Ours: for Fairlead, not for another program, such as "ovs-ctl restart" while it restores flows.
	Set, Ours bool
	// Restored is the last argument of SetRestoreWait.
	Restored string
}

func (o openVSwitch) restoreWait() RestoreWait {
	value, set := o.OtherConfig[restoreWaitKey]
	return RestoreWait{Set: set, Ours: value == restoreWaitOurs, Restored: o.ExternalIDs[restoredKey]}
}

// ClearRestoreWait keeps ovs-vswitchd from waiting, now and at its next start, and returns when it has applied that.
func (db *DB) ClearRestoreWait(ctx context.Context) error {
	if err := db.onRoot(ctx, true, ovsop.Delete("other_config", ovsop.Set(restoreWaitKey))); err != nil {
		return fmt.Errorf("removing other_config:%s: %w", restoreWaitKey, err)
	}
	return nil
}

// SetRestoreWait makes ovs-vswitchd wait for Fairlead at its next start. Call it only after ClearRestoreWait: an
// ovs-vswitchd that has not seen the key absent waits at once. restored names the current start of ovs-vswitchd.
func (db *DB) SetRestoreWait(ctx context.Context, restored string) error {
	err := db.onRoot(ctx, false,
		ovsop.Delete("other_config", ovsop.Set(restoreWaitKey)),
		ovsop.Add("other_config", ovsop.Map(map[string]string{restoreWaitKey: restoreWaitOurs})),
		ovsop.Delete("external_ids", ovsop.Set(restoredKey)),
		ovsop.Add("external_ids", ovsop.Map(map[string]string{restoredKey: restored})))
	if err != nil {
		return fmt.Errorf("setting other_config:%s: %w", restoreWaitKey, err)
	}
	return nil
}

// onRoot changes the Open_vSwitch row and, if wait is set, waits until ovs-vswitchd has applied the change.
func (db *DB) onRoot(ctx context.Context, wait bool, mutations ...ovsdb.Mutation) error {
	ctx, cancel := limit(ctx)
	defer cancel()
	c, s, err := db.snapshot(ctx)
	if err != nil {
		return err
	}
	var p plan
	p.mutate("Open_vSwitch", s.root.UUID, mutations...)
	if !wait {
		_, err := c.transact(ctx, p.ops)
		return err
	}
	p.seal(s.root)
	number, err := c.numbered(ctx, p, s.root)
	if err != nil {
		return err
	}
	return db.awaitApplied(ctx, number)
}

// numbered commits p, and returns the resulting configuration number (next_cfg).
func (c *conn) numbered(ctx context.Context, p plan, root openVSwitch) (int, error) {
	results, err := c.transact(ctx, append(p.ops, ovsop.Select("Open_vSwitch", ovsop.ByUUID(root.UUID), "next_cfg")))
	if err != nil {
		return 0, err
	}
	rows := results[len(results)-1].Rows
	if len(rows) != 1 {
		return 0, fmt.Errorf("the database has %d Open_vSwitch rows", len(rows))
	}
	n, ok := rows[0]["next_cfg"].(float64) // as package json reads numbers
	if !ok {
		return 0, fmt.Errorf("next_cfg is %v, not a number", rows[0]["next_cfg"])
	}
	return int(n), nil
}

// awaitApplied waits until ovs-vswitchd has applied the configuration number.
func (db *DB) awaitApplied(ctx context.Context, number int) error {
	for {
		next := db.next()
		c, err := db.current()
		if err != nil {
			return err
		}
		if c.replica.read().root.CurCfg >= number {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return errors.New("ovs-vswitchd does not answer: it has not applied the change")
		}
	}
}
