package agent

import (
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/nat"
)

// Pods do not wait for iptables, so one that hangs must be told; and that it has answered as well.
func TestIptablesThatHangsIsTold(t *testing.T) {
	l := &loop{metrics: newMetrics(), rules: rules{inPlace: true, busy: true, began: time.Now()}}
	if err := l.applyRules(nat.Desired{}, true); err != nil {
		t.Errorf("a moment after it was asked: %v", err)
	}
	l.rules.began = time.Now().Add(-2 * rulesTimeout)
	if err := l.applyRules(nat.Desired{}, true); err == nil {
		t.Error("it is not told")
	}
	if news := l.takeRules(rulesLook{}); !news {
		t.Error("no round tells that it has answered")
	}
	if err := l.applyRules(nat.Desired{}, true); err != nil {
		t.Errorf("after it has answered: %v", err)
	}
}
