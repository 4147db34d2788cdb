package agent

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow"
)

// The chart's alerts use only metrics that the agent has.
func TestAlertsKnowTheMetrics(t *testing.T) {
	m := status.NewMetrics("test")
	client, err := kube.ForConfig(&rest.Config{Host: "http://127.0.0.1:1"}) // not contacted
	if err != nil {
		t.Fatal(err)
	}
	m.AddClient(client)
	m.AddInputs(inputs.NewKubernetes(client, "n", "", true, logr.Discard()))
	descriptions, known := make(chan *prometheus.Desc, 1000), ""
	m.Registry.Describe(descriptions)
	close(descriptions)
	for d := range descriptions {
		known += d.String()
	}
	text, err := os.ReadFile("../build/charts/fairlead/files/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, alerts, found := strings.Cut(string(text), "- name: fairlead-agent\n")
	if alerts, _, _ = strings.Cut(alerts, "\n- name: "); !found {
		t.Fatal("there are no alerts of the agent")
	}
	asked := regexp.MustCompile(`fairlead_[a-z_]+`).FindAllString(alerts, -1)
	for _, name := range asked {
		name = strings.TrimSuffix(name, "_count")
		if !strings.Contains(known, `fqName: "`+name+`"`) {
			t.Errorf("an alert asks for %s, which the agent does not have", name)
		}
	}
	if len(asked) < 10 {
		t.Errorf("the alerts ask for %v only", asked)
	}
}

// Names, units, help texts and kinds follow Prometheus' rules.
func TestMetricsAreClean(t *testing.T) {
	m := status.NewMetrics("test")
	m.Loop.Round(time.Second, nil)
	m.Loop.FlowsSynced(1, openflow.Changes{})
	m.Pods.Request("ADD", "0", 1)
	m.Loop.Policies.Count(true, 1, "NetworkPolicy", "ns", "", "ingress")
	m.Loop.Policies.Count(false, 1, "NetworkPolicy", "ns", "web", "ingress")
	m.Loop.Policies.Enforced.Observe(1)
	m.Desired(desired.State{})
	problems, err := testutil.GatherAndLint(m.Registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
