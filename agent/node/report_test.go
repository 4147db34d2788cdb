package node

import (
	"errors"
	"testing"
)

// An uplink that is not attached yet is no reason to tell people to move addresses.
func TestTunnelEvent(t *testing.T) {
	if got := tunnelEvent(errors.New("no tunnel"), false); got != "no tunnel" {
		t.Errorf("a tunnel that cannot work: %q", got)
	}
	if got := tunnelEvent(errors.New("no tunnel"), true) + tunnelEvent(nil, false); got != "" {
		t.Errorf("an uplink that is not attached, or a tunnel that works: %q", got)
	}
}
