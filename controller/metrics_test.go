package controller

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// The metrics follow Prometheus' rules: base units, _total for counters only, help texts.
func TestMetricsLint(t *testing.T) {
	m := newMetrics("test")
	m.lead(t.Context())
	newReclaimMetrics(m)
	vectors := []*prometheus.GaugeVec{m.used, m.total, m.ready, m.fullIn, m.rangeUsed, m.rangeTotal, m.faults, m.kept}
	for _, g := range vectors {
		g.WithLabelValues("x") // a vector without a value is not gathered
	}
	problems, err := testutil.GatherAndLint(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	families, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, sample := range f.Metric {
			for _, label := range sample.Label {
				if strings.ContainsAny(label.GetValue(), " ") {
					t.Errorf("%s: the value %q of label %s has a space", f.GetName(), label.GetValue(), label.GetName())
				}
			}
		}
	}
}

// The chart's alerts only use metrics that the controller exports.
func TestAlertsKnowTheMetrics(t *testing.T) {
	descriptions, known := make(chan *prometheus.Desc, 1000), ""
	m := newMetrics("test")
	m.registry.Describe(descriptions)
	m.cluster.Describe(descriptions)
	close(descriptions)
	for d := range descriptions {
		known += d.String()
	}
	text, err := os.ReadFile("../build/charts/fairlead/files/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, alerts, found := strings.Cut(string(text), "- name: fairlead-controller\n")
	asked := regexp.MustCompile(`fairlead_[a-z_]+`).FindAllString(alerts, -1)
	if !found || len(asked) < 6 {
		t.Errorf("the alerts ask for %v only", asked)
	}
	for _, name := range asked {
		if !strings.Contains(known, `fqName: "`+name+`"`) {
			t.Errorf("an alert asks for %s, which the controller does not have", name)
		}
	}
}
