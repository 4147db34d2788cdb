package alarms

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/chaos"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// share is the duration in every run of the suite: an event or two at each node, which are short.
const share = 10 * time.Second

// told is in the log of an agent that reports a fault.
const told = "pods of another node are not reached"

// No agent ever reports a path fault for an event that is none: in its state, its metrics or its log. Events of one
// node follow each other, those of different nodes overlap at random; now and then all agents are replaced one by one.
// When it is over all pods are reached.
func TestRootReachSoak(t *testing.T) {
	ovstest.UserspaceOnly(t, "a guest stands still for longer than agents wait for each other")
	seed := chaos.Start()
	if stored := chaos.Seeds(t); len(stored) > 0 {
		seed = stored[0]
	}
	t.Logf("to repeat: SEED=%d go test -run '^%s$' ./test/alarms", seed, t.Name())
	c := up(t, 4)
	c.allReached(t, "at the start", labtest.Patience(t, 90*time.Second))
	h := &history{began: time.Now(), happened: map[string]int{}, alarms: map[string]bool{}}
	ctx, stop := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	for _, node := range c.Nodes() {
		watching.Go(func() { c.watch(ctx, node, h) })
	}
	c.happen(t, seed, chaos.Time(t, share), h)
	c.allReached(t, "at the end", labtest.Patience(t, 3*time.Minute))
	stop()
	watching.Wait()
	c.wantNoAlarm(t, h)
}

// history is what has happened, and what was reported.
type history struct {
	mu       sync.Mutex
	began    time.Time
	lines    []string
	happened map[string]int
	alarms   map[string]bool
	looks    int
}

func (h *history) note(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, fmt.Sprintf("%7s  ", time.Since(h.began).Round(100*time.Millisecond))+fmt.Sprintf(format, args...))
}

// watch notes what a node's agent reports, each second, until ctx ends.
func (c *cluster) watch(ctx context.Context, node string, h *history) {
	last := ""
	for ctx.Err() == nil {
		time.Sleep(time.Second)
		r := c.reach(ctx, node)
		if r == nil {
			continue
		}
		h.mu.Lock()
		h.looks++
		h.mu.Unlock()
		now := fmt.Sprintf("%d of %d reached, %d away, problem %q", r.Reached, r.Asked, r.Away, r.Problem)
		for _, f := range r.Findings {
			now += fmt.Sprintf("\n            ALARM: %s %s: %s %v", f.Family, f.Cause, f.Text, f.Seen)
		}
		if now != last {
			h.note("%s: %s", node, now)
		}
		last = now
	}
}

// happen runs random events at each node for a time.
func (c *cluster) happen(t *testing.T, seed uint64, d time.Duration, h *history) {
	t.Helper()
	// An event that has begun is completed: it takes minutes.
	ctx, cancel := context.WithTimeout(t.Context(), d+labtest.Patience(t, 10*time.Minute))
	defer cancel()
	busy := map[string]*sync.Mutex{} // one event at a time per node
	for _, node := range c.Nodes() {
		busy[node] = new(sync.Mutex)
	}
	end := time.Now().Add(d)
	try := func(node string, dice *rand.Rand, e event) {
		busy[node].Lock()
		defer busy[node].Unlock()
		h.note("%s: %s", node, e.name)
		if err := e.do(happening{c, ctx, node, dice, d == share}); err != nil {
			t.Errorf("%s: %s: %v", node, e.name, err)
		}
		h.note("%s: over: %s", node, e.name)
		h.mu.Lock()
		h.happened[e.name]++
		h.mu.Unlock()
	}
	var all sync.WaitGroup
	for i, node := range c.Nodes() {
		dice := rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() {
			for time.Now().Before(end) && !t.Failed() {
				time.Sleep(min(time.Duration(dice.Int64N(int64(15*time.Second))), d/5))
				try(node, dice, events()[dice.IntN(len(events()))])
			}
		})
	}
	all.Go(func() {
		dice := rand.New(rand.NewPCG(seed, 1<<32))
		replaced := event{"an update, node by node", func(e happening) error { return e.agentAway(e.AgentStop, 0, 3*time.Second) }}
		for {
			time.Sleep(min(time.Until(end), 2*time.Minute+time.Duration(dice.Int64N(int64(3*time.Minute)))))
			if !time.Now().Before(end) {
				return
			}
			for _, node := range c.Nodes() {
				try(node, dice, replaced)
			}
		}
	})
	all.Wait()
}

// wantNoAlarm checks that no agent has reported a fault.
func (c *cluster) wantNoAlarm(t *testing.T, h *history) {
	t.Helper()
	total := 0
	for _, n := range h.happened {
		total += n
	}
	t.Logf("%d events in %s, and %d looks at what agents report: %v", total, time.Since(h.began).Round(time.Second), h.looks, h.happened)
	alarms := 0
	for _, node := range c.Nodes() {
		for line := range strings.Lines(c.log(t, node)) {
			if strings.Contains(line, told) && !strings.Contains(line, "resolved") {
				alarms++
				t.Errorf("%s reported: %s", node, line)
			}
		}
		out, err := c.NodeExec(t.Context(), node, filepath.Join(binDir, "fairleadctl"), "doctor", "reach", "--node-local")
		if err != nil {
			t.Errorf("%s: doctor: %v\n%s", node, err, out)
		}
		metrics, err := c.get(t.Context(), node, "/metrics")
		if err != nil || !strings.Contains(string(metrics), `fairlead_reach_peers{state="broken"} 0`) {
			t.Errorf("%s: metrics: %v, without a 0 of broken paths", node, err)
		}
	}
	if alarms > 0 || t.Failed() {
		t.Logf("%d false alarms. What has happened:\n%s", alarms, strings.Join(h.lines, "\n"))
	}
	if len(slices.Sorted(maps.Keys(h.happened))) == 0 {
		t.Error("nothing has happened: this tested nothing")
	}
}
