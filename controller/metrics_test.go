package controller

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// The chart's alerts ask for metrics that the controller has.
func TestAlertsKnowTheMetrics(t *testing.T) {
	descriptions, known := make(chan *prometheus.Desc, 1000), ""
	newMetrics().registry.Describe(descriptions)
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
