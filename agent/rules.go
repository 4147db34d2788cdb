package agent

import (
	"fmt"
	"reflect"

	"github.com/fairlead-cni/fairlead/datapath/nat"
)

// rules are the node's iptables rules. Whether they are still there is looked at beside the rounds: iptables waits for
// whoever else writes rules, for seconds where there are many, and no pod is to wait for that. Owned by the goroutine
// in run.
type rules struct {
	tables  nat.Tables
	wanted  nat.Desired    // what the last look was for
	busy    bool           // a look is on its way
	done    chan rulesLook // gets how it went
	written bool           // they were as wanted once
	again   bool           // the next round looks again
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
	r.again = false
	if r.busy {
		return
	}
	r.busy, r.wanted = true, want
	go func() {
		changes, err := r.tables.Apply(want)
		r.done <- rulesLook{drift, changes, err}
	}()
}

// end waits for a look that is on its way: nobody would finish its work.
func (r *rules) end() {
	if r.busy {
		<-r.done
	}
}

// applyRules returns why the rules are not as they should be. It waits where others are wanted than before.
func (l *loop) applyRules(want nat.Desired, settled bool) error {
	r := &l.rules
	others := !r.written || !reflect.DeepEqual(r.wanted, want)
	if others && r.busy {
		l.takeRules(<-r.done)
	}
	if others || l.full || r.again {
		r.look(want, settled && !others && r.failed == nil)
	}
	if others {
		l.takeRules(<-r.done)
	}
	return r.failed
}

// takeRules takes note of how a look went, and tells whether a round has to say something new of it.
func (l *loop) takeRules(look rulesLook) (news bool) {
	r := &l.rules
	r.busy = false
	l.told("iptables", look.drift, look.changes)
	news = (look.err == nil) != (r.failed == nil)
	if r.failed = look.err; look.err != nil {
		r.failed = fmt.Errorf("iptables: %w", look.err)
	}
	r.written = r.written || look.err == nil
	return news
}
