package ovsrelease

import (
	"os"
	"strings"
	"testing"
)

func TestVerify(t *testing.T) {
	const said = "ovs-vswitchd (Open vSwitch) 3.1.0\n"
	for want, ok := range map[string]bool{"": true, "3.1": true, "3.5": false, "3": true, "1.0": false} {
		t.Setenv(variable, want)
		if err := Verify(said); (err == nil) != ok {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func TestUnknownRelease(t *testing.T) {
	if _, err := Get(t.Context(), "2.0", os.Stderr); err == nil || !strings.Contains(err.Error(), "there is 3.5") {
		t.Error(err)
	}
}
