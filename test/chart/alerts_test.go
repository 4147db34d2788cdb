package chart

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// alertCase is what Prometheus has collected, once a minute, and whether the alert fires after so many minutes. No
// other alert may.
type alertCase struct {
	alert  string
	fires  bool
	after  int
	series map[string]string // values in promtool's notation: 1x60 is 61 times 1, 0+2x60 counts by 2
	about  string            // the labels that its texts use
}

const (
	agent      = `{job="fairlead-agent",instance="10.0.0.1:10350",node="n1"}`
	agent2     = `{job="fairlead-agent",instance="10.0.0.2:10350",node="n2"}`
	controller = `job="fairlead-controller",instance="10.0.0.1:10349",node="n1"}`
)

func alertCases() []alertCase {
	requests := func(code string) string {
		return `fairlead_cni_request_duration_seconds_count{verb="ADD",code="` + code + `",` + agent[1:]
	}
	pool := func(metric string) string { return "fairlead_pool_" + metric + `{pool="p",` + controller }
	one := func(alert, about, series, bad, good string, after int) []alertCase {
		return []alertCase{{alert, true, after, map[string]string{series: bad}, about},
			{alert, false, after, map[string]string{series: good}, ""}}
	}
	return slices.Concat(
		one("FairleadNodeServesNoPods", `node="n1"`, "fairlead_ready"+agent, "0x60", "0x3 1x60", 7),
		one("FairleadAgentMissing", `daemonset="fairlead-ovs"`, `kube_daemonset_status_number_unavailable{namespace="kube-system",daemonset="fairlead-ovs"}`, "1x60", "1x8 0x60", 12),
		one("FairleadAgentMissing", `daemonset="fairlead-agent"`, `kube_daemonset_status_number_unavailable{namespace="kube-system",daemonset="fairlead-agent"}`, "2x60", "0x60", 12),
		one("FairleadNodeDegraded", `node="n1"`, "fairlead_degraded"+agent, "1x60", "1x8 0x60", 12),
		one("FairleadPeersRefused", `node="n1"`, "fairlead_peers_refused"+agent, "2x60", "0x60", 12),
		one("FairleadTunnelUnusable", `node="n1"`, "fairlead_tunnel_unusable"+agent, "1x60", "0x60", 12),
		one("FairleadPodsOutsidePodCIDR", `node="n1"`, "fairlead_pods_outside_podcidr"+agent, "2x60", "0x60", 20),
		one("FairleadDriftRepaired", `kind="flows"`, `fairlead_drift_repaired_total{kind="flows",`+agent[1:], "0+1x100", "0x30 5x70", 60),
		one("FairleadAPIServerNotFollowed", `node="n1"`, "fairlead_api_synced"+agent, "0x60", "0x8 1x60", 12),
		one("FairleadAddressConflicts", `node="n1"`, "fairlead_pool_address_conflicts_total"+agent, "0x5 1x60", "1x60", 20),
		one("FairleadAddressesOwed", `node="n1"`, "fairlead_pool_addresses_pending_release"+agent, "3x60", "3x20 0x60", 40),
		one("FairleadPodsNotReached", `node="n1"`, `fairlead_reach_peers{state="broken",`+agent[1:], "2x60", "0x60", 4),
		one("FairleadPodsLargePacketsLost", `node="n1"`, `fairlead_reach_peers{state="narrow",`+agent[1:], "2x60", "0x5 1x4 0x60", 12),
		one("FairleadPodsPacketsLost", `node="n1"`, `fairlead_reach_peers{state="lossy",`+agent[1:], "1x60", "1x8 0x60", 15),
		one("FairleadNetworkPoliciesNotEnforced", "", "fairlead_network_policies_not_enforced"+agent, "2x100", "0x100", 70),
		[]alertCase{
			// One pod whose ADD fails each time: kubelet tries again after 10 to 20 seconds.
			{"FairleadRequestsFail", true, 40, map[string]string{requests("11"): "1+4x60", requests("0"): "7x60"}, `node="n1"`},
			{"FairleadRequestsFail", false, 40, map[string]string{requests("11"): "1x30 6x30", requests("0"): "0+5x60"}, ""},
			{"FairleadUplinkNotAttached", true, 12, map[string]string{"fairlead_uplink_attached" + agent: "0x60",
				"fairlead_uplink_wanted" + agent: "1x60", "fairlead_pool_addresses_allocated_total" + agent: "0x60"}, `node="n1"`},
			// Without bridging, addresses of pools are those of secondary networks.
			{"FairleadUplinkNotAttached", false, 12, map[string]string{"fairlead_uplink_attached" + agent: "0x60",
				"fairlead_uplink_wanted" + agent: "0x60", "fairlead_pool_addresses_allocated_total" + agent: "7x60"}, ""},
			{"FairleadUplinkNotAttached", false, 12, map[string]string{"fairlead_uplink_attached" + agent: "1x60",
				"fairlead_uplink_wanted" + agent: "1x60", "fairlead_uplink_attached" + agent2: "0x60",
				"fairlead_uplink_wanted" + agent2: "0x60"}, ""},
			{"FairleadPoolFull", true, 12, map[string]string{pool("addresses_used"): "3x60", pool("addresses"): "3x60"}, `pool="p"`},
			{"FairleadPoolFull", false, 12, map[string]string{pool("addresses_used"): "2x60", pool("addresses"): "3x60"}, ""},
			// An invalid pool has no addresses, and another alert.
			{"FairleadPoolFull", false, 12, map[string]string{pool("addresses_used"): "0x60", pool("addresses"): "0x60"}, ""},
		},
		one("FairleadControllerMissing", "", `kube_deployment_status_replicas_available{namespace="kube-system",deployment="fairlead-controller"}`, "0x60", "1x60", 12),
		one("FairleadPoolFullSoon", `pool="p"`, pool("time_to_exhaustion_seconds"), "3600x60", "864000x60", 40),
		one("FairleadPoolNotReady", `pool="p"`, pool("ready"), "0x60", "1x60", 12),
		one("FairleadAddressesNotReserved", "", "fairlead_statefulset_addresses_missing{"+controller, "1x60", "1x10 0x60", 20),
		one("FairleadNodesWithoutPodCIDR", "", "fairlead_nodes_without_podcidr{"+controller, "2x60", "0x60", 12),
		one("FairleadPodCIDRProblem", `kind="Shared"`, `fairlead_podcidr_problems{kind="Shared",`+controller, "2x60", "0x60", 12),
		one("FairleadNodeIPAMStopped", "", "fairlead_nodeipam_stopped{"+controller, "1x60", "0x60", 12),
	)
}

// Each alert fires when it must, without any other, and is silent otherwise, as promtool evaluates it.
func TestAlerts(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("SKIPPED, NOT TESTED: there is no promtool, which build/deps.sh installs")
	}
	alerts, err := os.ReadFile(filepath.Join(chartDir, "files/alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`(?m)^ *- alert: (\w+)$`).FindAllStringSubmatch(string(alerts), -1)
	tested := map[string]int{}
	var tests []any
	for i, c := range alertCases() {
		var input, firing []any
		for series, values := range c.series {
			input = append(input, map[string]any{"series": series, "values": values})
		}
		if c.fires {
			firing = append(firing, map[string]any{"labels": fmt.Sprintf(`{alertname="%s"}`, c.alert), "value": 1})
		}
		checks := []any{map[string]any{"expr": `count by (alertname) (ALERTS{alertstate="firing"})`,
			"eval_time": fmt.Sprintf("%dm", c.after), "exp_samples": firing}}
		if c.about != "" {
			checks = append(checks, map[string]any{"expr": fmt.Sprintf("count by (alertname) (ALERTS{%s})", c.about),
				"eval_time": fmt.Sprintf("%dm", c.after), "exp_samples": firing})
		}
		tests = append(tests, map[string]any{"interval": "1m", "input_series": input, "promql_expr_test": checks,
			"name": fmt.Sprintf("case %d: %s fires: %t", i, c.alert, c.fires)})
		tested[fmt.Sprint(c.alert, c.fires)]++
	}
	for _, name := range names {
		if tested[name[1]+"true"] == 0 || tested[name[1]+"false"] == 0 {
			t.Errorf("%s has no case in which it must fire, or none in which it must not", name[1])
		}
	}
	cases, err := yaml.Marshal(map[string]any{"rule_files": []string{"rules.yaml"}, "evaluation_interval": "1m", "tests": tests})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	rules := append([]byte("groups:\n"), bytes.ReplaceAll(alerts, []byte("\n"), []byte("\n  "))...)
	rules = bytes.Replace(rules, []byte("groups:\n"), []byte("groups:\n  "), 1)
	for name, text := range map[string][]byte{"rules.yaml": rules, "cases.yaml": cases} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "cases.yaml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "FAILED") {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
}
