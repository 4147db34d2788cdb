package agent

import (
	"fmt"
	"reflect"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/nat"
)

// rulesTimeout is how long a look at the rules may take before that is told. iptables waits for others for seconds.
const rulesTimeout = time.Minute

// rules are the node's iptables rules. Whether they are still there is looked at beside the rounds: iptables waits for
// whoever else writes rules, for seconds where there are many, and no pod is to wait for that. Owned by the goroutine
// in run.
type rules struct {
	tables  nat.Tables
	wanted  nat.Desired    // what the last look was for
	inPlace bool           // they have been so
	busy    bool           // a look is on its way
	began   time.Time      // when it began
	done    chan rulesLook // gets how it went
	failed  error          // how the last look failed
}

// rulesLook is how a look at the rules went.
type rulesLook struct {
	drift   bool // changes mend what somebody else did
	changes []string
	err     error
}

// look has the rules made what want says, unless somebody is at it.
func (r *rules) look(want nat.Desired, drift bool) {
	if r.busy {
		return
	}
	r.busy, r.began, r.wanted = true, time.Now(), want
	go func() {
		changes, err := r.tables.Apply(want)
		r.done <- rulesLook{drift, changes, err}
	}()
}

// applyRules returns why the rules are not as they should be. It waits where others are wanted than are in place.
func (l *loop) applyRules(want nat.Desired, settled bool) error {
	r := &l.rules
	others := !r.inPlace || !reflect.DeepEqual(r.wanted, want)
	if others && r.busy {
		l.takeRules(<-r.done)
	}
	if others {
		r.inPlace = false
	}
	if others || l.full || r.failed != nil {
		r.look(want, settled && !others)
	}
	if others {
		l.takeRules(<-r.done)
	}
	if r.busy && time.Since(r.began) > rulesTimeout {
		return fmt.Errorf("iptables has not answered for %s: it hangs, or another program that writes rules does. End that one "+
			"(ps -ef | grep tables)", time.Since(r.began).Round(time.Second))
	}
	return r.failed
}

// takeRules takes note of how a look went, and tells whether a round has to say something new of it.
func (l *loop) takeRules(look rulesLook) (news bool) {
	r := &l.rules
	r.busy = false
	l.told("iptables", look.drift, look.changes)
	news = (look.err == nil) != (r.failed == nil) || time.Since(r.began) > rulesTimeout
	if r.failed = look.err; look.err != nil {
		r.failed = fmt.Errorf("iptables: %w", look.err)
	}
	r.inPlace = r.inPlace || look.err == nil
	return news
}
