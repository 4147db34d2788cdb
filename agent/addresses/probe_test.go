package addresses

import (
	"net/netip"
	"testing"
	"time"
)

// That nobody uses an address is believed once, as long as it is not too old: after that a pod may have it.
func TestAnswerServesOnce(t *testing.T) {
	w := vlanAddr{vlan: 10, addr: netip.MustParseAddr("10.1.0.7")}
	for what, c := range map[string]struct {
		answer answer
		free   bool
	}{
		"free":         {answer{at: time.Now()}, true},
		"in use":       {answer{at: time.Now(), found: true}, false},
		"too long ago": {answer{at: time.Now().Add(-time.Hour)}, false},
	} {
		p := prober{mostAge: time.Minute, answers: map[vlanAddr]answer{w: c.answer}}
		for i, want := range []bool{c.free, false} {
			if got := p.free(w); got != want {
				t.Errorf("%s, asked %d times before: free %t, want %t", what, i, got, want)
			}
		}
	}
}
