// Package alarms tests what happens to nodes in any cluster but is not a path failure: agents and Open vSwitch that
// die, nodes that are down, drained, removed and added, updates. None of it may be reported as unreachable pods.
package alarms

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/manifest"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// binDir is where labtest.Main has built the programs; empty if it did not build them.
var binDir string

func TestMain(m *testing.M) { labtest.Main(m, &binDir) }

// cluster is a lab whose agents probe at the product's own pace.
type cluster struct {
	*lab.Lab
	// nodes serializes changes of Nodes.
	nodes sync.Mutex
}

func up(t *testing.T, nodes int) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a lab needs root")
	}
	l, err := lab.Up(t.Context(), lab.Options{Dir: filepath.Join(t.TempDir(), "lab"), BinDir: binDir, Nodes: nodes,
		Datapath: vswitch.Datapath(ovstest.UnderTest(t)), ProductIntervals: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Down(context.Background(), l.Dir(), nil); err != nil {
			t.Error(err)
		}
	})
	return &cluster{Lab: l}
}

// change changes a stored Node.
func (c *cluster) change(name string, how func(*corev1.Node)) error {
	c.nodes.Lock()
	defer c.nodes.Unlock()
	node, err := c.stored(name)
	if err != nil {
		return err
	}
	how(node)
	_, err = c.Manifests().Apply([]manifest.Object{node})
	return err
}

func (c *cluster) stored(name string) (*corev1.Node, error) {
	o, err := c.Manifests().Get(manifest.Ref{Kind: "Node", Name: name})
	if err != nil {
		return nil, err
	}
	node, ok := o.(*corev1.Node)
	if !ok {
		return nil, errors.New("there is no Node " + name)
	}
	return node, nil
}

// remove deletes a Node, and returns its last state.
func (c *cluster) remove(name string) (*corev1.Node, error) {
	c.nodes.Lock()
	defer c.nodes.Unlock()
	node, err := c.stored(name)
	if err != nil {
		return nil, err
	}
	_, err = c.Manifests().Delete([]manifest.Object{node})
	return node, err
}

func (c *cluster) add(node *corev1.Node) error {
	c.nodes.Lock()
	defer c.nodes.Unlock()
	_, err := c.Manifests().Apply([]manifest.Object{node})
	return err
}

// get is what a node's agent serves at path; an error while it does not run.
func (c *cluster) get(ctx context.Context, node, path string) ([]byte, error) {
	h, err := c.Host(node)
	if err != nil {
		return nil, err
	}
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = h.Do(func() error { conn, err = (&net.Dialer{}).DialContext(ctx, network, addr); return err })
			return conn, err
		}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10350"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// reach is what a node's agent has found; nil while it does not run.
func (c *cluster) reach(ctx context.Context, node string) *api.AgentReach {
	body, err := c.get(ctx, node, "/state")
	if err != nil {
		return nil
	}
	var s api.AgentState
	if json.Unmarshal(body, &s) != nil {
		return nil
	}
	return s.Reach
}

// log is that of all agents of a node so far.
func (c *cluster) log(t *testing.T, node string) string {
	t.Helper()
	path, err := c.AgentLog(node)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// allReached waits until each node has reached all others' pods.
func (c *cluster) allReached(t *testing.T, when string, limit time.Duration) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(200 * time.Millisecond) {
		var wrong []string
		for _, node := range c.Nodes() {
			if r := c.reach(t.Context(), node); r == nil || r.Reached != len(c.Nodes())-1 {
				wrong = append(wrong, fmt.Sprintf("%s: %+v", node, r))
			}
		}
		if len(wrong) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not all nodes are reached after %s:\n  %s", when, limit, strings.Join(wrong, "\n  "))
		}
	}
}
