package ovsdb

import (
	"context"
	"fmt"
	"time"

	"github.com/ovn-org/libovsdb/ovsdb"
)

// defaultLimit is for callers whose context has no deadline.
const defaultLimit = 10 * time.Second

// transact commits ops, all or none.
func (c *conn) transact(ctx context.Context, ops []ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	results, err := within(ctx, func() ([]ovsdb.OperationResult, error) { return c.client.Transact(ctx, ops...) })
	if err != nil {
		return nil, fmt.Errorf("ovsdb-server did not apply the change: %w", err)
	}
	if failed, err := ovsdb.CheckOperationResults(results, ops); err != nil {
		for _, f := range failed {
			err = fmt.Errorf("%w; %w", err, f)
		}
		return nil, fmt.Errorf("OVSDB rejected the transaction: %w", err)
	}
	return results, nil
}

// within returns when f does or ctx ends. The library writes to the socket without a deadline, so a stopped server
// could block f forever.
func within[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var zero T
		return zero, ctx.Err()
	}
}

// limit gives ctx a deadline if it has none.
func limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, defaultLimit)
}
