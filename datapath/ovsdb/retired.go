package ovsdb

import (
	"context"
	"fmt"
	"time"
)

const (
	// atOnce is how many ports RemoveRetired takes away before it waits for ovs-vswitchd. Each holds up the userspace
	// datapath, packets and flows, for 10 ms.
	atOnce = 4
	// takenLimit is how long RemoveRetired waits for that.
	takenLimit = 5 * time.Second
)

// RemoveRetired removes the ports of the bridge that Prune has retired, also one of another process, and returns when
// ovs-vswitchd has let go of their devices. If that does not answer within 5 seconds the ports are removed all the
// same, and the error says so.
func (db *DB) RemoveRetired(ctx context.Context, name string) error {
	var silent error
	for {
		number, err := db.removeSome(ctx, name, silent == nil)
		if err != nil {
			return fmt.Errorf("removing ports of pods that are gone from bridge %s: %w", name, err)
		}
		if number == 0 {
			return silent
		}
		if silent == nil {
			silent = db.awaitRemoval(ctx, number)
		}
	}
}

// removeSome removes some of the retired ports, or all, and returns the number of the configuration without them; 0 if
// there were none.
func (db *DB) removeSome(ctx context.Context, name string, some bool) (number int, err error) {
	ctx, cancel := limit(ctx)
	defer cancel()
	c, err := db.current()
	if err != nil {
		return 0, err
	}
	s, err := db.snapshot(ctx, c)
	if err != nil {
		return 0, err
	}
	p := removal(s, name, some)
	if len(p.ops) == 0 {
		return 0, nil
	}
	p.askNextCfg(s.root)
	results, err := c.transact(ctx, p.ops)
	if err != nil {
		return 0, err
	}
	db.tell(p.changes)
	return nextCfg(results)
}

// removal is the pure part of removeSome.
func removal(s snapshot, name string, some bool) plan {
	var p plan
	b := s.bridges[name]
	var gone []string
	for port, h := range s.portsOf(b) {
		if h.ExternalIDs[markKey] == markRetired && !(some && len(gone) == atOnce) {
			gone = append(gone, h.port.UUID)
			p.did("port %s removed", port)
		}
	}
	if len(gone) > 0 {
		p.removePorts(b, gone...)
		p.seal(s.root)
	}
	return p
}

func (db *DB) awaitRemoval(ctx context.Context, number int) error {
	ctx, cancel := context.WithTimeout(ctx, takenLimit)
	defer cancel()
	if err := db.awaitTaken(ctx, number); err != nil {
		return fmt.Errorf("ports of pods that are gone are removed from the database alone: %w", err)
	}
	return nil
}
