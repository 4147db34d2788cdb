package rows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ovn-org/libovsdb/ovsdb"

	"github.com/fairlead-cni/fairlead/datapath/internal/jsonrpc"
)

// database is its name in the schema.
const database = "Open_vSwitch"

// callLimit ends one call: a stopped server accepts a connection and never replies.
const callLimit = 3 * time.Second

// DB is the location of Open vSwitch's database.
type DB struct {
	// RunDir contains db.sock. File is the database file, for when no server runs; empty if it was not found.
	RunDir string `json:"runDir"`
	File   string `json:"file"`
}

// Find looks for the database file: the one that the ovsdb-server of runDir has open, else where distributions keep it.
func Find(runDir string) DB {
	candidates := []string{filepath.Join(runDir, "conf.db"), "/etc/openvswitch/conf.db", "/var/lib/openvswitch/conf.db"}
	if pid, err := os.ReadFile(filepath.Join(runDir, "ovsdb-server.pid")); err == nil {
		fds := filepath.Join("/proc", strings.TrimSpace(string(pid)), "fd")
		entries, _ := os.ReadDir(fds) // none: the other places are left
		for _, e := range entries {
			if file, err := os.Readlink(filepath.Join(fds, e.Name())); err == nil && strings.HasSuffix(file, "conf.db") {
				candidates = append([]string{file}, candidates...)
			}
		}
	}
	for _, file := range candidates {
		if _, err := os.Stat(file); err == nil {
			return DB{runDir, file}
		}
	}
	return DB{RunDir: runDir}
}

// Running reports whether ovsdb-server listens.
func (db DB) Running() bool {
	conn, err := net.DialTimeout("unix", db.socket(), callLimit)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

func (db DB) socket() string { return filepath.Join(db.RunDir, "db.sock") }

// transact commits all operations or none, through the server if one listens, else in the file.
func (db DB) transact(ctx context.Context, ops ...ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	params := ovsdb.NewTransactArgs(database, ops...)
	var results []ovsdb.OperationResult
	err := jsonrpc.Call(ctx, "ovsdb-server", db.socket(), "transact", params, &results)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		results, err = db.offline(ctx, ops, params)
	}
	if err != nil {
		return nil, err
	}
	for _, r := range results { // one more than operations if the commit itself fails
		if r.Error != "" {
			return nil, fmt.Errorf("OVSDB rejected the transaction: %s (%s)", r.Error, r.Details)
		}
	}
	if len(results) < len(ops) {
		return nil, fmt.Errorf("OVSDB answered %d of %d operations", len(results), len(ops))
	}
	return results, nil
}

// offline reads or changes the file. For a change ovsdb-tool locks it, so no server can use it at the same time; a
// server that starts meanwhile would fail, so reads take no lock.
func (db DB) offline(ctx context.Context, ops []ovsdb.Operation, params []any) ([]ovsdb.OperationResult, error) {
	if db.File == "" {
		return nil, fmt.Errorf("ovsdb-server is down at %s, and the database's file was not found", db.socket())
	}
	text, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	command := "query"
	if slices.ContainsFunc(ops, func(op ovsdb.Operation) bool { return op.Op != ovsdb.OperationSelect }) {
		command = "transact"
	}
	cmd := exec.CommandContext(ctx, "ovsdb-tool", command, db.File, string(text))
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil, fmt.Errorf("ovsdb-tool %s %s: %w: %s", command, db.File, err, strings.TrimSpace(string(exit.Stderr)))
	} else if err != nil {
		return nil, fmt.Errorf("ovsdb-server is down, and its database cannot be edited offline: %w", err)
	}
	var results []ovsdb.OperationResult
	if err := json.Unmarshal(out, &results); err != nil {
		return nil, fmt.Errorf("reading ovsdb-tool's answer: %w", err)
	}
	return results, nil
}
