package crash

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/ipam/hostlocal"
	"github.com/fairlead-cni/fairlead/test/crash/nodestate"
)

// step is an action of an ADD or a DEL that can be observed from outside.
type step string

// The steps of ADD, in order, and those of DEL.
const (
	leaseMade  step = "lease made"
	vethMade   step = "veth made"
	portMade   step = "port in OVSDB"
	portNumber step = "port has a number"
	flowsMade  step = "flows made"
	addDone    step = "ADD answered"

	flowsGone   step = "flows gone"
	portRetired step = "port retired in OVSDB"
	leaseGone   step = "lease gone"
	delDone     step = "DEL answered"
	portGone    step = "port gone from OVSDB" // this and the next a little after the answer
	vethGone    step = "veth gone"
)

// watcher observes the steps on node1 and kills a process at the step that it waits for.
type watcher struct {
	mu     sync.Mutex
	until  step
	pid    int
	delay  time.Duration
	killed chan struct{}
}

// arm makes the watcher kill the process at the next step of this kind, or a delay after it. Then the channel is
// closed.
func (w *watcher) arm(s step, pid int, delay time.Duration) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.until, w.pid, w.delay, w.killed = s, pid, delay, make(chan struct{})
	return w.killed
}

func (w *watcher) seen(s step) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.until != s {
		return
	}
	w.until = ""
	for end := time.Now().Add(w.delay); time.Now().Before(end); { // time.Sleep is not precise enough
	}
	unix.Kill(w.pid, unix.SIGKILL) // the test detects a process that has already exited
	close(w.killed)
}

// watch observes steps until the test ends.
func (c cluster) watch(t *testing.T) *watcher {
	t.Helper()
	w := &watcher{}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w.watchFiles(t, ctx, c.node.Private(hostlocal.DefaultDir), func(name string, made bool) {
		if _, err := netip.ParseAddr(name); err == nil {
			w.seen(either(made, leaseMade, leaseGone))
		}
	})
	w.watchFiles(t, ctx, filepath.Join(c.Dir(), "pods"), func(name string, made bool) {
		pod, isRecord := strings.CutSuffix(name, ".json")
		if !isRecord {
			return
		}
		rec, err := c.Records().Load(strings.Replace(pod, "_", "/", 1))
		if !made {
			w.seen(delDone)
		} else if err == nil && rec != nil && len(rec.IPs) > 0 {
			w.seen(addDone)
		}
	})
	w.watchLinks(t, ctx, c)
	w.watchOVSDB(t, ctx, c)
	w.watchFlows(t, ctx, c)
	return w
}

func either(yes bool, a, b step) step {
	if yes {
		return a
	}
	return b
}

// watchFiles reports files that appear in a directory, also by a rename, and that are removed.
func (w *watcher) watchFiles(t *testing.T, ctx context.Context, dir string, report func(name string, made bool)) {
	t.Helper()
	files, err := fsnotify.NewWatcher()
	must(t, err)
	must(t, files.Add(dir))
	go func() {
		defer files.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-files.Events:
				if e.Has(fsnotify.Create) || e.Has(fsnotify.Remove) {
					report(filepath.Base(e.Name), e.Has(fsnotify.Create))
				}
			}
		}
	}()
}

func (w *watcher) watchLinks(t *testing.T, ctx context.Context, c cluster) {
	t.Helper()
	updates := make(chan netlink.LinkUpdate, 100)
	// What this process has not read is in the socket: when that is full the kernel ends the subscription.
	all := netlink.LinkSubscribeOptions{ReceiveBufferSize: 16 << 20, ReceiveBufferForceSize: true}
	must(t, c.node.Do(func() error { return netlink.LinkSubscribeWithOptions(updates, ctx.Done(), all) }))
	go func() {
		for u := range updates {
			if nodestate.IsPodPort(u.Attrs().Name) {
				w.seen(either(u.Header.Type == unix.RTM_NEWLINK, vethMade, vethGone))
			}
		}
	}()
}

// watchOVSDB monitors the ports and their numbers (RFC 7047, 4.1.5).
func (w *watcher) watchOVSDB(t *testing.T, ctx context.Context, c cluster) {
	t.Helper()
	var conn net.Conn
	must(t, c.node.Do(func() (err error) { conn, err = net.Dial("unix", "/run/openvswitch/db.sock"); return err }))
	context.AfterFunc(ctx, func() { conn.Close() })
	send := json.NewEncoder(conn)
	must(t, send.Encode(map[string]any{"id": 0, "method": "monitor", "params": []any{"Open_vSwitch", nil,
		map[string]any{"Port": map[string]any{"columns": []string{"name", "external_ids"}},
			"Interface": map[string]any{"columns": []string{"ofport"}}}}}))
	go func() {
		type row struct {
			Old json.RawMessage // the changed columns, if the row existed before
			New struct {
				Name   string
				IDs    json.RawMessage `json:"external_ids"`
				OFPort any
			}
		}
		for in := json.NewDecoder(conn); ; {
			var msg struct {
				ID     any
				Method string
				Params []json.RawMessage
			}
			if in.Decode(&msg) != nil {
				return
			}
			if msg.Method == "echo" { // the server's keepalive
				send.Encode(map[string]any{"id": msg.ID, "result": msg.Params, "error": nil})
			}
			var tables struct{ Port, Interface map[string]row }
			if msg.Method != "update" || json.Unmarshal(msg.Params[1], &tables) != nil {
				continue
			}
			for _, p := range tables.Port {
				switch {
				case p.New.Name == "":
					w.seen(portGone)
				case p.Old == nil:
					w.seen(portMade)
				case strings.Contains(string(p.New.IDs), `["fairlead","retired"]`):
					w.seen(portRetired)
				}
			}
			for _, i := range tables.Interface {
				if number, ok := i.New.OFPort.(float64); ok && number > 0 {
					w.seen(portNumber)
				}
			}
		}
	}()
}

// watchFlows reads the agent's log, which has a line as soon as ovs-vswitchd has confirmed flows.
func (w *watcher) watchFlows(t *testing.T, ctx context.Context, c cluster) {
	t.Helper()
	path, err := c.AgentLog(node)
	must(t, err)
	log, err := os.Open(path)
	must(t, err)
	_, err = log.Seek(0, io.SeekEnd)
	must(t, err)
	files, err := fsnotify.NewWatcher()
	must(t, err)
	must(t, files.Add(path))
	go func() {
		defer files.Close()
		defer log.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case <-files.Events:
			}
			news, _ := io.ReadAll(log)
			for line := range strings.Lines(string(news)) {
				if strings.Contains(line, `"changed flows"`) {
					w.seen(either(strings.Contains(line, "deleted=0"), flowsMade, flowsGone))
				}
			}
		}
	}()
}
