package host

import (
	"strings"
	"testing"
)

// kubectl in a lab must not reach the user's cluster.
func TestEnv(t *testing.T) {
	t.Setenv("KUBECONFIG", "/mine")
	t.Setenv("OVS_RUNDIR", "/elsewhere")
	for _, v := range Env() {
		if strings.HasPrefix(v, "KUBECONFIG=") || strings.HasPrefix(v, "OVS_RUNDIR=") {
			t.Error(v)
		}
	}
}
