package uplink

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
)

// world is a node as Next observes it. A step changes it as the real one does.
type world struct {
	Observed
	phase Phase
	mode  string
}

func (w *world) do(s Step) {
	o, on := &w.Observed, !s.Back
	switch s.Name {
	case stepNIC:
		o.NICWhole = true
	case stepBridge:
		o.Bridge, o.Rows, o.Device = on, on, on
		if !on {
			o.Port, o.Ready, o.OnDevice, o.Bare, o.Steered = false, false, Moved{}, true, false
			if o.Mutes { // the port is deleted with the bridge
				o.Taken = false
			}
		}
	case stepDevice:
		o.Ready = true
	case stepAddresses:
		o.OnDevice.Addresses, o.Bare = on, !on
	case stepPort:
		o.Port, o.Taken = on, on
	case stepRoutes:
		o.OnDevice.Routes, o.OnNIC.Routes = on, !on
		if !on {
			o.Port, o.Taken = false, false
		}
	case stepMute:
		o.Muted = on
	case stepClear:
		o.NICBare, o.OnNIC.Addresses, o.NICWhole = on, !on, false
	case stepSteer:
		o.Steered, o.Steering = on, on
	case stepVerify:
		w.phase = Attached
	}
}

func random(r *rand.Rand) world {
	b := func() bool { return r.IntN(2) == 0 }
	w := world{Observed{SameBoot: r.IntN(5) > 0, NIC: true, RowsKnown: true, Bridge: b(), Rows: b(), Port: b(), Taken: b(),
		Device: b(), Ready: b(), Bare: b(), OnDevice: Moved{b(), b()}, OnNIC: Moved{b(), b()}, NICBare: b(), NICWhole: b(),
		Mutes: b(), Muted: b(), Steering: b()}, []Phase{Attaching, Attached, Restoring, Detached}[r.IntN(4)],
		[]string{"", api.UplinkBridge, api.UplinkSteer}[r.IntN(3)]}
	w.Steered = w.Steering && b()
	w.NIC = w.NIC && r.IntN(10) > 0 || !w.SameBoot
	return w
}

func (w *world) next() Step { return Next(Journal{Phase: w.phase, Mode: w.mode}, w.Observed) }

// Whatever is found at the start, and whatever is killed or changed on the way, the uplink ends up either attached or
// detached completely.
func TestNextEnds(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20000 {
		w := random(r)
		start := w
		var done []Step
		for disturbances := r.IntN(4); ; {
			s := w.next()
			if again := w.next(); s != again {
				t.Fatalf("%+v: first %v, then %v", w, s, again)
			}
			if s.Name == "" {
				break
			}
			if s.Back != (w.phase == Restoring || !w.SameBoot) {
				t.Fatalf("%+v: %v is the wrong way", w, s)
			}
			if len(done) > 40 {
				t.Fatalf("no end from %+v: %v", start, done)
			}
			if r.IntN(3) > 0 { // otherwise killed before it had an effect
				w.do(s)
			}
			if done = append(done, s); disturbances > 0 && r.IntN(4) == 0 {
				disturbances--
				other := random(r)
				other.SameBoot, other.NIC, other.phase, other.Mutes, other.mode = w.SameBoot, w.NIC, w.phase, w.Mutes, w.mode
				if w.phase == Attaching && r.IntN(2) == 0 {
					other.phase = Restoring // the deadline has passed
				}
				w = other
			}
		}
		w.check(t, start, done)
	}
}

func (w *world) check(t *testing.T, start world, done []Step) {
	t.Helper()
	o := w.Observed
	switch {
	case w.phase == Detached && o.SameBoot:
	case w.mode == api.UplinkSteer:
		w.checkSteer(t, start, done)
	case w.phase == Restoring || !o.SameBoot:
		if o.Rows || o.Port || o.Taken || o.Device || o.Muted {
			t.Fatalf("from %+v by %v: something of Fairlead's is left: %+v", start, done, o)
		}
		if o.SameBoot && o.NIC && (!o.NICWhole || o.OnNIC != Moved{true, true}) {
			t.Fatalf("from %+v by %v: the NIC is not as it was: %+v", start, done, o)
		}
		if !undone(Journal{Phase: w.phase, Mode: w.mode}, o) {
			t.Fatalf("from %+v by %v: the end, and not all is undone: %+v", start, done, o)
		}
	default:
		if w.phase != Attached || !o.Bridge || !o.Port || !o.Taken || !o.Ready || !o.NICBare ||
			o.OnDevice != (Moved{true, true}) || o.Mutes && !o.Muted {
			t.Fatalf("from %+v by %v: not attached: %+v", start, done, o)
		}
	}
}

// checkSteer is check for mode steer, which leaves the host's configuration alone.
func (w *world) checkSteer(t *testing.T, start world, done []Step) {
	t.Helper()
	o := w.Observed
	if w.phase == Restoring || !o.SameBoot {
		if o.Rows || o.Device || o.Steering || !undone(Journal{Phase: w.phase, Mode: w.mode}, o) {
			t.Fatalf("from %+v by %v: something of Fairlead's is left: %+v", start, done, o)
		}
	} else if w.phase != Attached || !o.Bridge || !o.Ready || !o.Steered {
		t.Fatalf("from %+v by %v: not attached: %+v", start, done, o)
	}
	for _, s := range done {
		switch s.Name {
		case stepBridge, stepDevice, stepSteer, stepVerify:
		default:
			t.Fatalf("from %+v by %v: a step of mode bridge", start, done)
		}
	}
}

// An undo step that fails is left out, the others are done, and it does not count as undone.
func TestFailedStepsAreLeftOut(t *testing.T) {
	for _, f := range facts(api.UplinkBridge) {
		w := world{Observed{SameBoot: true, NIC: true, RowsKnown: true, Bridge: true, Rows: true, Port: true, Taken: true,
			Device: true, Ready: true, OnDevice: Moved{true, true}, NICBare: true, Mutes: true, Muted: true}, Restoring, ""}
		before := f.undone(Journal{Phase: Restoring}, w.Observed)
		w.Failed = []string{f.name}
		var done []string
		for s := w.next(); s.Name != ""; s = w.next() {
			if slices.Contains(done, s.Name) {
				t.Fatalf("%s fails: %s again after %v", f.name, s.Name, done)
			}
			w.do(s)
			done = append(done, s.Name)
		}
		if slices.Contains(done, f.name) {
			t.Errorf("%s was done though it fails", f.name)
		}
		if !before && len(done) < 3 {
			t.Errorf("%s fails: only %v are done", f.name, done)
		}
	}
}

// ways are the steps of a node from w on, until there are none left.
func (w *world) ways() (names []string) {
	for s := w.next(); s.Name != "" && len(names) < 20; s = w.next() {
		w.do(s)
		names = append(names, s.String())
	}
	return names
}

// Each step is taken in order, once, and only if it is needed.
func TestStepsInTheirOrder(t *testing.T) {
	host := Observed{SameBoot: true, NIC: true, RowsKnown: true, Bare: true, OnNIC: Moved{true, true}, NICWhole: true}
	for _, c := range []struct {
		mode, there, back string
		mutes             bool
	}{
		{api.UplinkBridge, "bridge device addresses port routes clear verify",
			"undo clear,undo routes,undo addresses,undo bridge,undo nic", false},
		{api.UplinkBridge, "bridge device addresses port routes mute clear verify",
			"undo clear,undo mute,undo routes,undo addresses,undo bridge,undo nic", true},
		{api.UplinkSteer, "bridge device steer verify", "undo steer,undo bridge", false},
	} {
		w := world{host, Attaching, c.mode}
		w.Mutes = c.mutes
		if there := strings.Join(w.ways(), " "); there != c.there {
			t.Errorf("mode %s, mutes %t: there by %q, want %q", c.mode, c.mutes, there, c.there)
		}
		w.RowsKnown = false
		if more := w.ways(); len(more) > 0 {
			t.Errorf("mode %s, mutes %t: attached, and the database cannot be read: %q", c.mode, c.mutes, more)
		}
		w.RowsKnown, w.phase = true, Restoring
		if back := strings.Join(w.ways(), ","); back != c.back {
			t.Errorf("mode %s, mutes %t: back by %q, want %q", c.mode, c.mutes, back, c.back)
		}
	}
}

// Without the database, a missing bridge is still created, and a port that is taken is not taken again.
func TestStepsWithoutTheDatabase(t *testing.T) {
	o := Observed{SameBoot: true, NIC: true, Device: true, Ready: true, OnDevice: Moved{true, true}, Taken: true}
	for step, change := range map[string]func(*Observed){
		stepClear:  func(*Observed) {},
		stepBridge: func(o *Observed) { o.Device = false },
		stepPort:   func(o *Observed) { o.Taken = false },
	} {
		now := o
		if change(&now); Next(Journal{Phase: Attaching}, now) != (Step{step, false}) {
			t.Errorf("%+v: %v, want %s", now, Next(Journal{Phase: Attaching}, now), step)
		}
	}
}
