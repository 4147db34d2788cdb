package addresses

import (
	"net/netip"
	"testing"
	"time"
)

// The answer that an address is free is used once, and only if it is recent: afterwards a pod may have the address.
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
		p := prober{maxAge: time.Minute, answers: map[vlanAddr]answer{w: c.answer}}
		for i, want := range []bool{c.free, false} {
			if got := p.free(w); got != want {
				t.Errorf("%s, asked %d times before: free %t, want %t", what, i, got, want)
			}
		}
	}
}
