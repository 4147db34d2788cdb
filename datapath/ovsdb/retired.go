package ovsdb

import (
	"context"
	"fmt"
	"time"
)

const (
	// atOnce is how many ports RemoveRetired removes before it waits for ovs-vswitchd. Each blocks the userspace datapath,
	// packets and flows, for 10 ms.
	atOnce = 4
	// applyTimeout is how long RemoveRetired waits for ovs-vswitchd.
	applyTimeout = 5 * time.Second
)

// RemoveRetired removes the bridge's ports that Prune has retired, in this or another process, and returns their names
// when ovs-vswitchd has released their devices. If it does not answer within 5 seconds the ports are removed
// nevertheless, and the error says so.
func (db *DB) RemoveRetired(ctx context.Context, name string) (removed []string, err error) {
	for {
		ports, number, failed := db.removeSome(ctx, name, err == nil)
		if failed != nil {
			return removed, fmt.Errorf("removing stale pod ports from bridge %s: %w", name, failed)
		}
		if len(ports) == 0 {
			return removed, err
		}
		removed = append(removed, ports...)
		if err == nil {
			err = db.awaitRemoval(ctx, number)
		}
	}
}

// removeSome removes some or all of the retired ports, and returns their names and the configuration number without
// them.
func (db *DB) removeSome(ctx context.Context, name string, some bool) (ports []string, number int, err error) {
	ctx, cancel := limit(ctx)
	defer cancel()
	c, s, err := db.snapshot(ctx)
	if err != nil {
		return nil, 0, err
	}
	p, ports := removal(s, name, some)
	if len(ports) == 0 {
		return nil, 0, nil
	}
	if number, err = c.numbered(ctx, p, s.root); err != nil {
		return nil, 0, err
	}
	for _, change := range p.changes {
		db.log.Info("OVSDB changed", "change", change)
	}
	return ports, number, nil
}

// removal is the pure part of removeSome.
func removal(s snapshot, name string, some bool) (p plan, ports []string) {
	b := s.bridges[name]
	var gone []string
	for port, h := range s.portsOf(b) {
		if h.ExternalIDs[markKey] == markRetired && !(some && len(gone) == atOnce) {
			gone, ports = append(gone, h.port.UUID), append(ports, port)
			p.record("port %s removed", port)
		}
	}
	if len(gone) > 0 {
		p.removePorts(b, gone...)
		p.seal(s.root)
	}
	return p, ports
}

func (db *DB) awaitRemoval(ctx context.Context, number int) error {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	if err := db.awaitApplied(ctx, number); err != nil {
		return fmt.Errorf("stale pod ports were removed from the database only: %w", err)
	}
	return nil
}
