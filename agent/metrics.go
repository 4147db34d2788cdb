package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow"
)

// metrics are what /metrics shows, all under the prefix fairlead_.
type metrics struct {
	registry    *prometheus.Registry
	ready       prometheus.Gauge
	degraded    prometheus.Gauge
	rounds      *prometheus.CounterVec
	roundTime   prometheus.Histogram
	flowCount   prometheus.Gauge
	flowChanges *prometheus.CounterVec
	hostChanges *prometheus.CounterVec
	pods        prometheus.Gauge
	peers       prometheus.Gauge
	peerCIDRs   *prometheus.GaugeVec
	refused     prometheus.Gauge
	strays      prometheus.Gauge
	inputErrors prometheus.Gauge
	cni         *prometheus.HistogramVec
	reclaimed   *prometheus.CounterVec
	policies    prometheus.Gauge
	armed       prometheus.Gauge
	drift       *prometheus.CounterVec
	given       prometheus.Counter
	conflicts   prometheus.Counter
	owed        prometheus.Gauge
	probes      *prometheus.CounterVec
	uplink      prometheus.Gauge
}

func newMetrics() *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_" + name, Help: help})
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairlead_" + name, Help: help}, labels)
	}
	plain := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_" + name, Help: help})
	}
	times := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		ready:    gauge("ready", "1 when the node serves pods, else 0."),
		degraded: gauge("degraded", "1 when something does not work though the node serves pods. The log says what."),
		rounds:   counter("loop_rounds_total", "Rounds of the loop that writes the node.", "result"),
		roundTime: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "fairlead_loop_round_seconds",
			Help: "Duration of one round of the loop.", Buckets: times}),
		flowCount:   gauge("flows", "OpenFlow flows that the node should have."),
		flowChanges: counter("flow_changes_total", "Flows that were added, modified or deleted.", "change"),
		hostChanges: counter("host_changes_total", "Changes of the gateway, routes and iptables rules.", "what"),
		pods:        gauge("pods", "Pod interfaces on this node."),
		peers:       gauge("peers", "Other nodes whose pods are served."),
		peerCIDRs: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "fairlead_peer_podcidrs",
			Help: "PodCIDRs of other nodes by the way there: tunnel, direct (a node of the same subnet) or routers " +
				"(left to the underlay's)."}, []string{"way"}),
		refused:     gauge("peers_refused", "Other nodes whose pods are not reached: a conflict. The log names them."),
		strays:      gauge("pods_outside_podcidr", "Pods with an address of a podCIDR that the node had before. The log names them."),
		inputErrors: gauge("input_problems", "Objects or manifests that are refused; what they said before stays in force."),
		cni: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "fairlead_cni_request_seconds",
			Help: "Duration of CNI requests by verb and CNI error code (0 is success).", Buckets: times}, []string{"verb", "code"}),
		armed: gauge("flow_restore_wait_armed", "1 when the next start of ovs-vswitchd keeps the kernel's flows "+
			"until the agent has written its own."),
		uplink:    gauge("uplink_attached", "1 when the node's NIC is attached, for bridged pods."),
		drift:     counter("drift_repaired_total", "What somebody else had changed on the node and was set right.", "kind"),
		policies:  gauge("network_policies_not_enforced", "Network policies in the cluster. Fairlead enforces none."),
		given:     plain("pool_addresses_given_total", "Addresses of IPPools that were given to pods."),
		conflicts: plain("pool_address_conflicts_total", "Addresses of IPPools that somebody else on the underlay uses. The log names them."),
		owed:      gauge("pool_addresses_owed", "Pods that are gone whose addresses of IPPools are not given back yet."),
		probes: counter("pool_probes_total", "Addresses about which the underlay was asked: by an ADD, which waited for it, "+
			"or ahead of one.", "when"),
		reclaimed: counter("reclaimed_total", "Leftovers of pods that are gone, taken back by the agent.", "what"),
	}
	m.registry.MustRegister(m.ready, m.degraded, m.rounds, m.roundTime, m.flowCount, m.flowChanges, m.hostChanges,
		m.pods, m.peers, m.peerCIDRs, m.refused, m.strays, m.inputErrors, m.cni, m.reclaimed, m.armed, m.drift, m.policies,
		m.given, m.conflicts, m.owed, m.probes, m.uplink,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// steerCounts are the counts of the uplink's programs, read when somebody asks for them.
type steerCounts struct{ uplink *nodeUplink }

func (steerCounts) desc() (frames, bytes *prometheus.Desc) {
	labels := []string{"from", "to"}
	return prometheus.NewDesc("fairlead_uplink_frames_total",
			"Frames that the programs of uplink mode steer sent which way. One that the NIC puts together or takes apart is one.",
			labels, nil),
		prometheus.NewDesc("fairlead_uplink_bytes_total", "Bytes of these frames.", labels, nil)
}

// Describe is a part of prometheus.Collector.
func (c steerCounts) Describe(out chan<- *prometheus.Desc) {
	frames, bytes := c.desc()
	out <- frames
	out <- bytes
}

// Collect is a part of prometheus.Collector.
func (c steerCounts) Collect(out chan<- prometheus.Metric) {
	frames, bytes := c.desc()
	for _, n := range c.uplink.counts() {
		out <- prometheus.MustNewConstMetric(frames, prometheus.CounterValue, float64(n.Frames), n.Source, n.Way)
		out <- prometheus.MustNewConstMetric(bytes, prometheus.CounterValue, float64(n.Bytes), n.Source, n.Way)
	}
}

func (m *metrics) round(took time.Duration, err error) {
	m.roundTime.Observe(took.Seconds())
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.rounds.WithLabelValues(result).Inc()
}

func (m *metrics) flows(count int, c openflow.Changes) {
	m.flowCount.Set(float64(count))
	m.flowChanges.WithLabelValues("added").Add(float64(c.Added))
	m.flowChanges.WithLabelValues("modified").Add(float64(c.Modified))
	m.flowChanges.WithLabelValues("deleted").Add(float64(c.Deleted))
}

func (m *metrics) changed(what string, n int) {
	m.hostChanges.WithLabelValues(what).Add(float64(n))
}

func (m *metrics) published(s *state) {
	m.ready.Set(one(s.notReady == nil))
	m.degraded.Set(one(s.degraded != nil))
	m.inputErrors.Set(float64(len(s.snapshot.Problems)))
}

func (m *metrics) desired(d Desired) {
	m.pods.Set(float64(len(d.OVSDB.Pods)))
	m.peers.Set(float64(len(d.Peers)))
	for _, w := range []Way{Tunnelled, Direct, LeftToRouters} {
		m.peerCIDRs.WithLabelValues(string(w)).Set(float64(len(byWay(d.Peers, w))))
	}
	m.refused.Set(float64(len(d.Problems)))
}

// one is the value of a gauge that says yes or no.
func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// cniRequest counts one CNI request.
func (m *metrics) cniRequest(verb, code string, seconds float64) {
	m.cni.WithLabelValues(verb, code).Observe(seconds)
}

// asks adds how often the API server was asked.
func (m *metrics) asks(client *kube.Client) {
	for _, method := range kube.Methods() {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "fairlead_api_requests_total",
			Help:        "Requests to the Kubernetes API by HTTP method; GET has lists and watches, too.",
			ConstLabels: prometheus.Labels{"method": method},
		}, func() float64 { return float64(client.Requests.Of(method)) }))
	}
}

// follows adds what is known of the API server.
func (m *metrics) follows(k *inputs.Kubernetes) {
	gauge := func(name, help string, value func() float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fairlead_" + name, Help: help}, value))
	}
	gauge("api_followed", "1 when all that the agent reads of the Kubernetes API is up to date, else 0.", func() float64 {
		s := k.Snapshot()
		return one(s.Trouble == nil && !s.Unread)
	})
	gauge("api_last_contact_timestamp_seconds", "When the Kubernetes API server last gave a sign of life.", func() float64 {
		return float64(k.LastContact().UnixMilli()) / 1000
	})
	for resource := range k.Failures() {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "fairlead_api_failures_total",
			Help:        "Requests and watches of the Kubernetes API that failed.",
			ConstLabels: prometheus.Labels{"resource": resource},
		}, func() float64 { return float64(k.Failures()[resource]) }))
	}
}
