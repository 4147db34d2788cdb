package ctl

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/internal/cli"
)

// run runs a command line and returns what it prints and its exit code.
func run(t *testing.T, args ...string) (string, int) {
	t.Helper()
	c := Command("fairleadctl", "dev")
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.ExecuteContext(t.Context())
	if err != nil && !errors.As(err, new(cli.ExitCode)) {
		out.WriteString(err.Error())
	}
	return out.String(), cli.Code(err)
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
		{"--cluster-cidr 10.244.0.0/12", cli.ExitUsage, "did you mean 10.240.0.0/12?"},
		{"--cluster-cidr 10.244.0.0/16,10.245.0.0/16", cli.ExitUsage, "one CIDR of each family"},
		{"--cluster-cidr 10.244.0.0/16 --node-mask 24,64", cli.ExitUsage, "want one for each CIDR"},
		{"--cluster-cidr 10.244.0.0/16 --node-mask x", cli.ExitUsage, "want a number"},
		{"--cluster-cidr 10.244.0.0/25", cli.ExitUsage, "no room for one /24"},
		{"--cluster-cidr fd00::/40", cli.ExitUsage, "at most 16"},
		{"--node-mask 24", cli.ExitUsage, "it is required"},
		{"--cluster-cidr 10.244.0.0/16 -o xml", cli.ExitUsage, "want text, json or yaml"},
		{"--cluster-cidr 10.244.0.0/16 more", cli.ExitUsage, "takes no arguments, only flags"},
		{"--no-such-flag", cli.ExitUsage, "no-such-flag"},
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

// Invalid arguments are reported before any request, and the missing ones are named.
func TestInvalidInput(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"doctor nonsense", cli.ExitUsage, "want one of pod-cidr, pools, leaks"},
		{"doctor -o xml", cli.ExitUsage, "want text, json or yaml"},
		{"doctor leaks --kubeconfig /no/such/file", cli.ExitError, "kubeconfig"},
		{"status more", cli.ExitUsage, "takes no arguments, only flags"},
		{"status --kubeconfig /no/such/file --config /no/such/file", cli.ExitUsage, "/no/such/file"},
		{"ipam", cli.ExitUsage, "missing command: want show, check, release"},
		{"ipam free", cli.ExitUsage, `unknown command "free"`},
		{"uplink", cli.ExitUsage, "missing command: want status, preflight, restore"},
		{"trace default/a", cli.ExitUsage, "want a pod, and an address, another pod or a port of a Service"},
		{"capture", cli.ExitUsage, "want a pod"},
		{"capture a", cli.ExitUsage, "want a file"},
		{"capture a -w f --duration 1h", cli.ExitUsage, "want at most 10m"},
		{"capture a -w f --size x", cli.ExitUsage, "want bytes, such as 100Mi"},
		{"capture a -w f --size 5Gi", cli.ExitUsage, "want at most 4Gi"},
		{"capture a -w f --packets 0", cli.ExitUsage, "want 1 to"},
		{"capture a -w f --snaplen 10", cli.ExitUsage, "want 64 to"},
		{"capture a -w f --to 10.0.0.1,10.0.0.2", cli.ExitUsage, "one address of each family"},
		{"capture a -w f --to b,10.0.0.2", cli.ExitUsage, "want a pod, or one address"},
		{"capture a -w f --node-local --on-node ssh", cli.ExitUsage, "--on-node has no effect"},
		{"capture a -w /no/such/dir/f --kubeconfig /no/such/file", cli.ExitError, "kubeconfig"},
		{"ipam show --kubeconfig /no/such/file", cli.ExitError, "kubeconfig"},
	} {
		if out, code := run(t, strings.Fields(c.args)...); code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s", c.args, code, c.code, c.says, out)
		}
	}
	if out, code := run(t, "doctor", "pools", "--kubeconfig", away(t)); code != cli.ExitError || !strings.Contains(out, "refused") {
		t.Errorf("the API server is away: exit code %d\n%s", code, out)
	}
}

// away is a kubeconfig of an API server that is not running.
func away(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(`{apiVersion: v1, kind: Config, current-context: c,
  clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], contexts: [{name: c, context: {cluster: c}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// As a kubectl plugin, its help shows the command that users type.
func TestPluginName(t *testing.T) {
	if got := CalledAs("/usr/local/bin/kubectl-fairlead"); got != "kubectl fairlead" || CalledAs("bin/fairleadctl") != "fairleadctl" {
		t.Error(got)
	}
	for _, name := range []string{"kubectl fairlead", "fairleadctl"} {
		for _, args := range [][]string{{"--help"}, {"doctor", "--help"}, {"ipam", "release", "--help"}, {"trace", "--help"}} {
			c := Command(name, "dev")
			var out bytes.Buffer
			c.SetOut(&out)
			c.SetArgs(args)
			if err := c.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), "\n  "+name+" ") ||
				name != "fairleadctl" && strings.Contains(out.String(), "fairleadctl") {
				t.Errorf("%s %v: %v\n%s", name, args, err, out.String())
			}
		}
	}
}

// Every command that prints has -o, an example, and a text for --help.
func TestCommandsAreAlike(t *testing.T) {
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		if c.Name() == "help" || c.Name() == "completion" {
			return
		}
		if c.Short == "" || c.RunE != nil && !c.HasSubCommands() && c.Flags().Lookup("output") == nil {
			t.Errorf("%s: no text, or no -o", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			check(sub)
		}
	}
	check(Command("fairleadctl", "dev"))
}

func TestColours(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	var b bytes.Buffer
	if coloured(&b) {
		t.Error("no terminal, and coloured")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if coloured(null) {
		t.Error(os.DevNull + " is no terminal")
	}
}

func TestDoctorWithoutCluster(t *testing.T) {
	if out, code := run(t, "doctor", "pod-cidr", "--kubeconfig", "/no/such/file"); code != cli.ExitError || !strings.Contains(out, "kubeconfig") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}
