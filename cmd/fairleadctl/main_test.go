package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// run runs a command line and returns what it prints and its exit code.
func run(t *testing.T, args ...string) (string, int) {
	t.Helper()
	c := command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.ExecuteContext(t.Context())
	told, usage := found{}, usageError{}
	switch {
	case err == nil:
		return out.String(), 0
	case errors.As(err, &told):
		return out.String(), told.code
	case errors.As(err, &usage):
		return out.String() + err.Error(), exitUsage
	}
	return out.String() + err.Error(), exitError
}

func TestPlanCommand(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"--cluster-cidr 10.244.0.0/16 --nodes 256", 0, "It holds 256 nodes"},
		{"--cluster-cidr 10.244.0.0/16 --nodes 257", exitFailing, "for 256 nodes, not for 257"},
		{"--cluster-cidr 10.244.0.0/16,fd00:10:244::/56 --node-mask 25,72", 0, "node-cidr-mask-size-ipv6=72"},
		{"--cluster-cidr 10.244.0.0/12", exitUsage, "is 10.240.0.0/12 meant?"},
		{"--cluster-cidr 10.244.0.0/16,10.245.0.0/16", exitUsage, "one CIDR of each family"},
		{"--cluster-cidr 10.244.0.0/16 --node-mask 24,64", exitUsage, "want as many"},
		{"--cluster-cidr 10.244.0.0/16 --node-mask x", exitUsage, "want a number"},
		{"--cluster-cidr 10.244.0.0/25", exitUsage, "no room for one /24"},
		{"--cluster-cidr fd00::/40", exitUsage, "at most 16"},
		{"--node-mask 24", exitUsage, "it is missing"},
		{"--cluster-cidr 10.244.0.0/16 -o xml", exitUsage, "want text or json"},
		{"--cluster-cidr 10.244.0.0/16 more", exitUsage, "takes flags only"},
		{"--no-such-flag", exitUsage, "no-such-flag"},
	} {
		out, code := run(t, append([]string{"plan"}, strings.Fields(c.args)...)...)
		if code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("plan %s: exit code %d, want %d and %q:\n%s", c.args, code, c.code, c.says, out)
		}
	}
	out, code := run(t, "plan", "--cluster-cidr", "10.244.0.0/16", "-o", "json")
	var plan struct{ Holds int }
	if err := json.Unmarshal([]byte(out), &plan); err != nil || code != 0 || plan.Holds != 256 {
		t.Errorf("-o json: %v, exit code %d\n%s", err, code, out)
	}
}

func TestDoctorWithoutCluster(t *testing.T) {
	if out, code := run(t, "doctor", "pod-cidr", "--kubeconfig", "/no/such/file"); code != exitError || !strings.Contains(out, "kubeconfig") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}
