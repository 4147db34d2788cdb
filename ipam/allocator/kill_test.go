package allocator

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// In the environment they make the test binary a node of that name that allocates and releases addresses in that store
// until it is killed.
const (
	childStore = "FAIRLEAD_TEST_ALLOCATOR_STORE"
	childNode  = "FAIRLEAD_TEST_ALLOCATOR_NODE"
)

// killPools are small, so that nodes compete, and cool for a short time, so that cooled addresses are reused.
func killPools(t testing.TB) []pool.Pool {
	return []pool.Pool{makePool(t, "v4", "10.2.0.1", "10.2.0.99", 0), makePool(t, "v6", "fd00::1", "fd00::99", 0)}
}

// allocateForEver logs to stdout what it has done: "+ NAME ADDR ADDR" after an ADD, "? NAME" before a DEL, "- NAME"
// after it. Each line is one write, so it is never torn.
func allocateForEver(where, node string) {
	s, err := openStore(where)
	if err != nil {
		fmt.Println("!", err)
		os.Exit(1)
	}
	a := New(Config{Store: s, Node: node, Cooling: time.Millisecond, Log: logr.Discard()})
	pools := killPools(&testing.B{})
	for g := range 3 {
		go func() {
			for i := 0; ; i++ {
				if err := allocateOnce(a, pools, fmt.Sprintf("p%d-g%d-%d", os.Getpid(), g, i)); err != nil {
					fmt.Println("!", err)
					os.Exit(1)
				}
			}
		}()
	}
	select {}
}

func allocateOnce(a *Allocator, pools []pool.Pool, name string) error {
	ctx := context.Background()
	got, err := a.Allocate(ctx, Request{Pools: pools, Owner: ownerNamed(name)})
	if full := (*ExhaustedError)(nil); errors.As(err, &full) {
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Println("+", name, prefixes(got))
	if rand.IntN(4) == 0 {
		return nil
	}
	fmt.Println("?", name)
	if err := a.Release(ctx, ownerNamed(name)); err != nil {
		return err
	}
	fmt.Println("-", name)
	return nil
}

func TestKilledAtAnyMomentDirectory(t *testing.T) { killNodes(t, t.TempDir(), 15, 15*time.Millisecond) }
func TestKubeKilledAtAnyMoment(t *testing.T)      { killNodes(t, apiServer(t), 4, 400*time.Millisecond) }

// killNodes runs two nodes and kills them at random moments, repeatedly. Addresses that their pods got have no other
// owner; addresses without a pod are found and released by the next process.
func killNodes(t *testing.T, where string, rounds int, most time.Duration) {
	s := mustOpen(t, where)
	answered, unanswered := 0, 0
	for range rounds {
		var mu sync.Mutex
		var all sync.WaitGroup
		alive := map[string]string{}
		for _, node := range []string{"n1", "n2"} {
			all.Go(func() {
				held := stillHeld(t, runAndKill(t, where, node, most))
				mu.Lock()
				defer mu.Unlock()
				for name, addrs := range held {
					alive[name] = addrs
				}
			})
		}
		all.Wait()
		held := map[string][]string{} // by pod
		for _, node := range []string{"n1", "n2"} {
			a := New(Config{Store: s, Node: node, Log: logr.Discard()})
			list, err := a.Held(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range list {
				held[h.Spec.Owner.Name] = append(held[h.Spec.Owner.Name], h.Spec.Address)
			}
			unanswered += giveBackDead(t, a, list, alive)
		}
		for name, addrs := range alive {
			if got := strings.Join(held[name], " "); got != addrs {
				t.Errorf("%s was given %s, and holds %q", name, addrs, got)
			}
		}
		answered += len(alive)
		for _, node := range []string{"n1", "n2"} { // the next round starts empty
			a := New(Config{Store: s, Node: node, Log: logr.Discard()})
			for name := range alive {
				release(t, a, name)
			}
			unanswered += giveBackLate(t, a, alive)
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d kills: %d pods kept their addresses, %d were left by calls without an answer", 2*rounds, answered, unanswered)
	if answered == 0 || unanswered == 0 {
		t.Errorf("the kills never came between a change and its answer: the test shows nothing")
	}
}

// giveBackDead does what the agent does at startup.
func giveBackDead(t *testing.T, a *Allocator, held []api.IPAllocation, alive map[string]string) (dead int) {
	t.Helper()
	for _, h := range held {
		if _, ok := alive[h.Spec.Owner.Name]; ok {
			continue
		}
		dead++
		if err := a.Release(t.Context(), h.Spec.Owner); err != nil {
			t.Error(err)
		}
	}
	return dead
}

// giveBackLate releases what a killed process had requested, and the API server has executed since the last check. It
// returns how many addresses these were, once none is held.
func giveBackLate(t *testing.T, a *Allocator, alive map[string]string) (late int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		list, err := a.Held(t.Context())
		if err == nil && len(list) == 0 {
			return late
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v is still held: %v", list, err)
		}
		late += giveBackDead(t, a, list, alive)
	}
}

// runAndKill starts the process, kills it within some time and returns its output.
func runAndKill(t *testing.T, where, node string, most time.Duration) []string {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childStore+"="+where, childNode+"="+node)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Error(err)
		return nil
	}
	r := bufio.NewReader(out)
	first, err := r.ReadString('\n')
	if err != nil {
		t.Errorf("the child said nothing: %v", err)
	}
	killer := time.AfterFunc(rand.N(most), func() { cmd.Process.Kill() })
	defer killer.Stop()
	rest, err := io.ReadAll(r)
	if err != nil {
		t.Error(err)
	}
	cmd.Wait() // the error is that it was killed
	return slices.Collect(strings.Lines(first + string(rest)))
}

// stillHeld are the pods whose ADD returned and whose DEL has not begun, and their addresses.
func stillHeld(t *testing.T, output []string) map[string]string {
	alive := map[string]string{}
	for _, line := range output {
		f := strings.Fields(line)
		switch f[0] {
		case "+":
			v4, _, _ := strings.Cut(f[2], "/")
			v6, _, _ := strings.Cut(f[3], "/")
			alive[f[1]] = v4 + " " + v6
		case "?":
			delete(alive, f[1])
		case "!":
			t.Errorf("the child failed: %s", line)
		}
	}
	return alive
}
