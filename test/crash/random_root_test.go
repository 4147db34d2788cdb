package crash

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/ovstest"
)

const (
	// answers is the minimum number of successful ADDs and DELs of a run; those that a kill interrupted come on top.
	answers = 240
	// kills is the minimum number of kills of the agent meanwhile.
	kills = 50
	// maxPods leaves some of the node's addresses free, because a deleted pod keeps its own until its DEL.
	maxPods = 16
)

// Pods are created and deleted, several at a time, and the agent is killed repeatedly. The caller of ADD and DEL
// retries, as kubelet does.
func TestRootKilledAtRandom(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	r := dice(t)
	c := up(t)
	stopWatching := c.watchAddresses(t)
	defer stopWatching()
	churn := churn{c: c, r: r, pods: map[string]bool{}}
	killed, cut := 0, 0
	for done := 0; done < answers || killed < kills || cut == 0 && killed < 4*kills; done = churn.answered(t) {
		for range 1 + r.IntN(5) {
			if r.IntN(3) == 0 { // otherwise, on a busy machine, every kill hits a starting agent
				c.readyForCNI(t)
			}
			churn.step(t)
			pause(r, 150*time.Millisecond)
			c.kill(t)
			killed++
		}
		// Otherwise the runner's retries would back off further and further.
		c.settle(t)
		c.check(t)
		cut = strings.Count(churn.log(t), "the agent stopped before it answered")
	}
	t.Logf("%d ADD and DEL succeeded, %d failed and were tried again, the agent was killed %d times, in the midst of %d of "+
		"them, and found %d leftovers", churn.answered(t), strings.Count(churn.log(t), "trying again"), killed, cut,
		strings.Count(c.agentLog(t), "reclaimed what a deleted pod left behind"))
	if cut == 0 {
		t.Error("no kill hit the agent at work: this tested nothing")
	}
	churn.removeAll(t)
	c.settle(t)
	c.check(t)
}

// pause waits for a random time up to most: any moment must work.
func pause(r *rand.Rand, most time.Duration) { time.Sleep(time.Duration(r.Int64N(int64(most)))) }

// churn creates and deletes pods.
type churn struct {
	c    cluster
	r    *rand.Rand
	pods map[string]bool
	next int
}

// step makes up to eight changes at once, one of a pod. A deleted pod may be recreated under its name while its DEL is
// in progress.
func (ch *churn) step(t *testing.T) {
	var add, del []string
	changed := map[string]bool{}
	for range 1 + ch.r.IntN(8) {
		names := slices.Sorted(maps.Keys(ch.pods))
		if len(names) > 0 && (len(names) >= maxPods || ch.r.IntN(2) == 0) {
			if name := names[ch.r.IntN(len(names))]; !changed[name] {
				changed[name] = true
				delete(ch.pods, name)
				del = append(del, name)
			}
			continue
		}
		ch.next++
		name := fmt.Sprintf("p%d", ch.next%24)
		if !ch.pods[name] && !changed[name] {
			changed[name], ch.pods[name] = true, true
			add = append(add, name)
		}
	}
	ch.change(t, add, del)
}

func (ch *churn) change(t *testing.T, add, del []string) {
	if ch.c.api != nil {
		ch.c.api.change(t.Context(), add, del)
		return
	}
	if len(del) > 0 {
		ch.c.remove(t, podsYAML(del)...)
	}
	if len(add) > 0 {
		ch.c.apply(t, podsYAML(add)...)
	}
}

func podsYAML(names []string) (manifests []string) {
	for _, name := range names {
		manifests = append(manifests, podYAML(name, node))
	}
	return manifests
}

func (ch *churn) removeAll(t *testing.T) {
	for name := range ch.pods {
		ch.c.remove(t, podYAML(name, node))
	}
}

func (ch *churn) log(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(ch.c.RunnerLog())
	must(t, err)
	return string(data)
}

// answered counts the calls that succeeded.
func (ch *churn) answered(t *testing.T) int {
	t.Helper()
	log := ch.log(t)
	return strings.Count(log, "sandbox created") + strings.Count(log, "sandbox removed")
}
