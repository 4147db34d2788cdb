package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/ovn-org/libovsdb/cache"
	"github.com/ovn-org/libovsdb/client"
	"github.com/ovn-org/libovsdb/model"
	"github.com/ovn-org/libovsdb/ovsdb"
)

const (
	// retryPause is the pause between two attempts to connect. It is constant, since the server is on the same machine and
	// everything waits for it.
	retryPause = 200 * time.Millisecond
	// dialLimit ends an attempt: a stopped server accepts a connection and never replies.
	dialLimit = 5 * time.Second
	// A server that leaves an echo (RFC 7047, 4.1.11) unanswered for
	// echoLimit counts as lost.
	echoEvery = 5 * time.Second
	echoLimit = 5 * time.Second
)

// DB is a connection to ovsdb-server that reconnects automatically. While it is down every call fails at once: a
// blocked caller could not report it meanwhile.
//
// Each connection has its own libovsdb client. The library can also reconnect automatically, but then a call blocks
// while the server is down, Connected stays true, and its inactivity check can panic or deadlock when the connection is
// lost during a transaction (v0.7.0, trafficSeen).
type DB struct {
	endpoint string
	log      logr.Logger
	changed  chan struct{}
	close    context.CancelFunc
	closed   chan struct{}

	mu   sync.Mutex
	conn *conn         // nil while down
	down error         // why conn is nil
	tick chan struct{} // closed and replaced at every change
}

// conn is one connection with its replica of the database.
type conn struct {
	client  client.Client
	replica *replica
	gone    chan struct{} // closed when the connection is lost
	ended   chan struct{} // closed by end
}

// follow closes gone when the library reports that the connection is lost. It reports that once, and only to a waiting
// receiver.
func (c *conn) follow() {
	select {
	case <-c.client.DisconnectNotify():
		close(c.gone)
	case <-c.ended:
	}
}

// end closes the connection in the background: closing waits for calls in flight, which end at their deadlines.
func (c *conn) end() {
	close(c.ended)
	go c.client.Close()
}

// Connect connects to ovsdb-server at endpoint, "unix:" and an absolute path.
// It fails when the first attempt fails, at the latest with ctx or after 5 seconds. From then on it reconnects
// automatically until Close.
func Connect(ctx context.Context, endpoint string, log logr.Logger) (*DB, error) {
	// The library falls back to the default path if it cannot parse one.
	path, ok := strings.CutPrefix(endpoint, "unix:")
	if !ok || !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "?#%") || len(path) > 107 {
		return nil, fmt.Errorf(`OVSDB endpoint %q is not "unix:" and an absolute path of at most 107 characters `+
			"without ? # %%", endpoint)
	}
	db := &DB{endpoint: endpoint, log: log, changed: make(chan struct{}, 1), closed: make(chan struct{}),
		tick: make(chan struct{})}
	c, err := db.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("ovsdb-server at %s: %w", endpoint, err)
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	db.close = cancel
	db.set(c, nil)
	go db.run(life, c)
	return db, nil
}

// Close ends the connection; all further calls fail.
func (db *DB) Close() {
	db.close()
	<-db.closed
}

// Connected reports whether ovsdb-server answers. It says nothing about ovs-vswitchd.
func (db *DB) Connected() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.conn != nil
}

// Changed receives a value after any change of a bridge, port or interface, and when the connection is established or
// lost. Several changes may be coalesced.
func (db *DB) Changed() <-chan struct{} { return db.changed }

// run keeps the connection up, at first c, until ctx ends.
func (db *DB) run(ctx context.Context, c *conn) {
	defer close(db.closed)
	for {
		db.log.Info("connected to OVSDB", "endpoint", db.endpoint)
		err := c.wait(ctx)
		db.set(nil, err)
		c.end()
		if ctx.Err() != nil {
			return
		}
		db.log.Error(err, "lost the connection to OVSDB, reconnecting", "endpoint", db.endpoint, "interval", retryPause.String())
		if c = db.redial(ctx); c == nil {
			return
		}
		db.set(c, nil)
	}
}

// redial dials until it has a connection. It returns nil when ctx ends.
func (db *DB) redial(ctx context.Context) *conn {
	for {
		c, err := db.dial(ctx)
		if err == nil {
			return c
		}
		db.set(nil, err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryPause):
		}
	}
}

// dial establishes a connection with a complete replica.
func (db *DB) dial(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	m, err := databaseModel()
	if err != nil {
		return nil, fmt.Errorf("preparing the database model: %w", err)
	}
	log := db.log.WithName("libovsdb").V(4)
	cl, err := client.NewOVSDBClient(m, client.WithEndpoint(db.endpoint), client.WithLogger(&log))
	if err != nil {
		return nil, fmt.Errorf("preparing the connection: %w", err)
	}
	if err := cl.Connect(ctx); err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	c := &conn{client: cl, replica: &replica{tables: cl.Cache()}, gone: make(chan struct{}), ended: make(chan struct{})}
	go c.follow()
	if c.replica.tables == nil {
		c.end()
		return nil, errors.New("connecting: ovsdb-server closed the connection at once")
	}
	c.replica.tables.AddEventHandler(&cache.EventHandlerFuncs{
		AddFunc:    func(string, model.Model) { db.signal() },
		UpdateFunc: func(string, model.Model, model.Model) { db.signal() },
		DeleteFunc: func(string, model.Model) { db.signal() },
	})
	monitor := cl.NewMonitor(columns()...)
	// Of the three monitor methods, the one with which the library detects an inconsistent replica and disconnects.
	monitor.Method = ovsdb.ConditionalMonitorRPC
	if _, err := cl.Monitor(ctx, monitor); err != nil {
		c.end()
		return nil, fmt.Errorf("reading the database: %w", err)
	}
	return c, nil
}

// wait returns, with the reason, when the connection is lost or ctx ends.
func (c *conn) wait(ctx context.Context) error {
	echoes := time.NewTicker(echoEvery)
	defer echoes.Stop()
	for {
		select {
		case <-ctx.Done():
			return errors.New("closed by this process")
		case <-c.gone:
			return errors.New("ovsdb-server closed the connection")
		case <-echoes.C:
			if err := c.echo(ctx); err != nil {
				return fmt.Errorf("ovsdb-server does not answer: %w", err)
			}
		}
	}
}

func (c *conn) echo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, echoLimit)
	defer cancel()
	_, err := within(ctx, func() (struct{}, error) { return struct{}{}, c.client.Echo(ctx) })
	return err
}

// set publishes that the connection was established, or lost for the reason down.
func (db *DB) set(c *conn, down error) {
	db.mu.Lock()
	changed := (db.conn == nil) != (c == nil)
	db.conn, db.down = c, down
	db.mu.Unlock()
	if changed {
		db.signal()
	}
}

func (db *DB) signal() {
	db.mu.Lock()
	close(db.tick)
	db.tick = make(chan struct{})
	db.mu.Unlock()
	select {
	case db.changed <- struct{}{}:
	default:
	}
}

// next returns a channel that the next change closes. Get it before reading.
func (db *DB) next() <-chan struct{} {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.tick
}

// current returns the connection, or the reason why there is none.
func (db *DB) current() (*conn, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.conn == nil {
		return nil, fmt.Errorf("ovsdb-server is down at %s: %w", db.endpoint, db.down)
	}
	return db.conn, nil
}
