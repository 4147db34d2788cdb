// Package nodestate queries the components of the node that it runs on: the agent, and Open vSwitch. It changes
// nothing.
package nodestate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver/wire"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/openflow"
)

// answerTimeout bounds each query.
const answerTimeout = 5 * time.Second

// Here reports whether this is a node: an agent has run here since boot.
func Here(cfg api.AgentConfig) bool {
	_, err := os.Stat(filepath.Dir(cfg.CNISocket))
	return err == nil
}

// Agent queries the agent. The error says why it does not respond, with the last error that it left for the CNI plugin.
func Agent(ctx context.Context, cfg api.AgentConfig) (api.AgentState, error) {
	body, status, where, err := query(ctx, cfg, http.MethodGet, "/state")
	if err != nil {
		return api.AgentState{}, err
	}
	var s api.AgentState
	if err := json.Unmarshal(body, &s); err != nil || status != http.StatusOK {
		return s, fmt.Errorf("the server at %s is not an agent of this version (HTTP status %d)", where, status)
	}
	return s, nil
}

// Probe has the agent probe another node for a minute. The error says why it does not.
func Probe(ctx context.Context, cfg api.AgentConfig, node string) error {
	body, status, where, err := query(ctx, cfg, http.MethodPost, "/reach/"+url.PathEscape(node))
	switch {
	case err != nil:
		return err
	case status == http.StatusConflict:
		return errors.New(strings.TrimSpace(string(body)))
	case status != http.StatusNoContent:
		return fmt.Errorf("the agent at %s is of an earlier version, which does not probe on request (HTTP status %d)", where, status)
	}
	return nil
}

// query sends the agent a request. where is its address.
func query(ctx context.Context, cfg api.AgentConfig, method, path string) (
	body []byte, status int, where string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	host := cfg.APIAddress.String()
	if cfg.APIAddress.IsUnspecified() {
		host = "localhost"
	}
	where = net.JoinHostPort(host, strconv.Itoa(cfg.APIPort))
	req, err := http.NewRequestWithContext(ctx, method, "http://"+where+path, nil)
	if err != nil {
		return nil, 0, where, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, 0, where, fmt.Errorf("the agent does not answer at %s: %w%s", where, short(err), lastError(cfg))
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(resp.Body); err != nil {
		return nil, 0, where, fmt.Errorf("the agent at %s: %w", where, err)
	}
	return body, resp.StatusCode, where, nil
}

// short is an error without the URL, with plainer words for a common one.
func short(err error) error {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return errors.New("nothing listens there")
	}
	if u := errors.Unwrap(err); u != nil {
		return u
	}
	return err
}

// lastError is the error that the last agent left for the CNI plugin.
func lastError(cfg api.AgentConfig) string {
	said, err := os.ReadFile(wire.LastErrorPath(cfg.CNISocket))
	if err != nil || len(said) == 0 {
		return ""
	}
	return ". Its last error: " + strings.TrimSpace(string(said))
}

// OVS connects to the node's ovsdb-server; the caller closes the connection.
func OVS(ctx context.Context, cfg api.AgentConfig) (*ovsdb.DB, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	socket := filepath.Join(cfg.OVSRunDir, "db.sock")
	db, err := ovsdb.Connect(ctx, "unix:"+socket, logr.Discard())
	return db, needsRoot(err)
}

// Switch connects to the pods' bridge; the caller closes the connection.
func Switch(ctx context.Context, cfg api.AgentConfig) (*openflow.Switch, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	sw, err := openflow.Dial(ctx, filepath.Join(cfg.OVSRunDir, cfg.OVSBridge+".mgmt"), logr.Discard())
	return sw, needsRoot(err)
}

// needsRoot adds the remedy to a permission error.
func needsRoot(err error) error {
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		return fmt.Errorf("this needs root (sudo): %w", err)
	}
	return err
}
