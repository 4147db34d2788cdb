package status

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow"
)

// Metrics are the metrics at /metrics, by the part that counts them. All names begin with fairlead_.
type Metrics struct {
	Registry *prometheus.Registry
	Health   HealthMetrics
	Loop     LoopMetrics
	Peers    PeerMetrics
	Pods     PodMetrics
	Pools    PoolMetrics
	Reach    ReachMetrics
}

// HealthMetrics say whether the node serves pods.
type HealthMetrics struct {
	Ready, Degraded, InputProblems, Uplink, UplinkWanted, TunnelUnusable, RestoreWaitArmed, Policies prometheus.Gauge
	// Unwritable has a series while the uplink's journal cannot be written.
	Unwritable *prometheus.GaugeVec
}

// LoopMetrics count what the loop does to the node.
type LoopMetrics struct {
	Rounds      *prometheus.CounterVec
	Duration    prometheus.Histogram
	Flows       prometheus.Gauge
	FlowChanges *prometheus.CounterVec
	HostChanges *prometheus.CounterVec
	Drift       *prometheus.CounterVec
	Policies    PolicyMetrics
	// Services counts ports of Services that Open vSwitch translates, Refusing those without endpoints.
	Services, Refusing prometheus.Gauge
}

// PeerMetrics count other nodes.
type PeerMetrics struct {
	Served, Refused prometheus.Gauge
	PodCIDRs        *prometheus.GaugeVec
}

// ReachMetrics count the nodes that are probed, and the packets of probes. None has a label for a node.
type ReachMetrics struct {
	Peers   *prometheus.GaugeVec
	Packets *prometheus.CounterVec
}

// PodMetrics count pods' interfaces and the requests about them.
type PodMetrics struct {
	Interfaces, Outside prometheus.Gauge
	Requests            *prometheus.HistogramVec
	Reclaimed           *prometheus.CounterVec
}

// PoolMetrics count addresses of IPPools.
type PoolMetrics struct {
	Allocated, Conflicts prometheus.Counter
	PendingReleases      prometheus.Gauge
	Probes               *prometheus.CounterVec
}

// NewMetrics registers all of them, and those of the Go runtime and of the process. version is that of the program.
func NewMetrics(version string) *Metrics {
	m := &Metrics{Registry: prometheus.NewRegistry(), Health: newHealthMetrics(), Loop: newLoopMetrics(),
		Peers: newPeerMetrics(), Pods: newPodMetrics(), Pools: newPoolMetrics(), Reach: newReachMetrics()}
	m.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fairlead_build_info",
		Help: "1, with the version of the program as label.", ConstLabels: prometheus.Labels{"version": version}},
		func() float64 { return 1 }))
	h, l, p, c := m.Health, m.Loop, m.Peers, m.Pools
	m.Registry.MustRegister(h.Ready, h.Degraded, h.InputProblems, h.Uplink, h.UplinkWanted, h.Unwritable, h.TunnelUnusable,
		h.RestoreWaitArmed, h.Policies,
		l.Policies.Accepted, l.Policies.Dropped, l.Policies.Enforced, l.Policies.Seen,
		l.Policies.LeftOut,
		l.Rounds, l.Duration, l.Flows, l.FlowChanges, l.HostChanges, l.Drift, l.Services, l.Refusing,
		p.Served, p.Refused, p.PodCIDRs,
		m.Pods.Interfaces, m.Pods.Outside, m.Pods.Requests, m.Pods.Reclaimed,
		c.Allocated, c.Conflicts, c.PendingReleases, c.Probes, m.Reach.Peers, m.Reach.Packets,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func newHealthMetrics() HealthMetrics {
	return HealthMetrics{
		Ready:         gauge("ready", "1 when the node serves pods, else 0."),
		Degraded:      gauge("degraded", "1 when something does not work though the node serves pods. The log says what."),
		InputProblems: gauge("input_problems", "Rejected objects or manifests; their last valid content stays in effect."),
		Uplink:        gauge("uplink_attached", "1 when the node's NIC is attached, for bridged pods."),
		Unwritable: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "fairlead_uplink_journal_unwritable",
			Help: "1, with path and error as labels, while the uplink's journal cannot be written to disk; otherwise absent."},
			[]string{"path", "error"}),
		UplinkWanted:   gauge("uplink_wanted", "1 when the node's NIC should be attached: enableBridgingMode is set."),
		TunnelUnusable: gauge("tunnel_unusable", "1 when no packets go through the tunnel to other nodes. The log says why."),
		RestoreWaitArmed: gauge("flow_restore_wait_armed", "1 when the next start of ovs-vswitchd keeps the kernel's flows "+
			"until the agent has written its own."),
		Policies: gauge("network_policies_not_enforced", "Network policies in the cluster that Fairlead does not enforce."),
	}
}

func newLoopMetrics() LoopMetrics {
	return LoopMetrics{
		Rounds:      counters("loop_rounds_total", "Rounds of the loop that writes the node.", "result"),
		Duration:    prometheus.NewHistogram(duration("loop_round_duration_seconds", "Duration of one round of the loop.")),
		Flows:       gauge("flows", "OpenFlow flows that the node should have."),
		FlowChanges: counters("flow_changes_total", "Flows that were added, modified or deleted.", "change"),
		HostChanges: counters("applied_changes_total", "Changes that appliers made to the node, by applier; flows have fairlead_flow_changes_total.", "kind"),
		Drift:       counters("drift_repaired_total", "External changes to the node that were reverted.", "kind"),
		Policies:    newPolicyMetrics(),
		Services:    gauge("service_ports", "Ports of Services, of each ClusterIP, that Open vSwitch translates."),
		Refusing:    gauge("service_ports_refusing", "Ports of Services, of each ClusterIP, that have no endpoint for pods of this node."),
	}
}

func newPeerMetrics() PeerMetrics {
	return PeerMetrics{
		Served:  gauge("peers", "Other nodes whose pods are served."),
		Refused: gauge("peers_refused", "Other nodes whose pods are not reached: a conflict. The log names them."),
		PodCIDRs: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "fairlead_peer_podcidrs",
			Help: "PodCIDRs of other nodes by path type: tunnel, direct (a node in the same subnet) or routers " +
				"(left to the underlay's)."}, []string{"path"}),
	}
}

func newReachMetrics() ReachMetrics {
	return ReachMetrics{
		Peers: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "fairlead_reach_peers",
			Help: "Other nodes that are probed (reachability: probe), by the state of the path to their pods: reached, unknown, " +
				"away (agent or node does not run), lossy, narrow (no full-size packets pass) or broken (none pass in one direction). " +
				"fairleadctl doctor names them."}, []string{"state"}),
		Packets: counters("reach_packets_total", "Probe packets of reachability: sent, heard, or ignored because they "+
			"came from where none should.", "kind"),
	}
}

func newPodMetrics() PodMetrics {
	return PodMetrics{
		Interfaces: gauge("pods", "Pod interfaces on this node."),
		Outside:    gauge("pods_outside_podcidr", "Pods with an address of a podCIDR that the node had before. The log names them."),
		Requests: prometheus.NewHistogramVec(duration("cni_request_duration_seconds",
			"Duration of CNI requests by verb and CNI error code (0 is success)."), []string{"verb", "code"}),
		Reclaimed: counters("reclaimed_total", "Leftovers of deleted pods that the agent reclaimed.", "kind"),
	}
}

func newPoolMetrics() PoolMetrics {
	return PoolMetrics{
		Allocated: prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_pool_addresses_allocated_total",
			Help: "Addresses of IPPools that were allocated to pods."}),
		Conflicts: prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_pool_address_conflicts_total",
			Help: "Addresses of IPPools that hosts outside of the cluster use. The log names them."}),
		PendingReleases: gauge("pool_addresses_pending_release", "Deleted pods whose addresses of IPPools are not released yet."),
		Probes: counters("pool_probes_total", "Addresses that were probed on the underlay: by an ADD, which waited for it, "+
			"or ahead of one.", "when"),
	}
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_" + name, Help: help})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairlead_" + name, Help: help}, labels)
}

func duration(name, help string) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Name: "fairlead_" + name, Help: help,
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}}
}

// Round counts a round of the loop; err says how it failed.
func (m *LoopMetrics) Round(took time.Duration, err error) {
	m.Duration.Observe(took.Seconds())
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.Rounds.WithLabelValues(result).Inc()
}

// FlowsSynced counts the flows that the switch has, and what was changed to get there.
func (m *LoopMetrics) FlowsSynced(count int, c openflow.Changes) {
	m.Flows.Set(float64(count))
	m.FlowsChanged(c)
}

// FlowsChanged counts what was changed of flows and groups.
func (m *LoopMetrics) FlowsChanged(c openflow.Changes) {
	m.FlowChanges.WithLabelValues("added").Add(float64(c.Added))
	m.FlowChanges.WithLabelValues("modified").Add(float64(c.Modified))
	m.FlowChanges.WithLabelValues("deleted").Add(float64(c.Deleted))
}

// Desired counts what a round wanted.
func (m *Metrics) Desired(d desired.State) {
	m.Pods.Interfaces.Set(float64(len(api.OfPods(d.OVSDB.Pods))))
	m.Peers.Served.Set(float64(len(d.Peers)))
	for _, path := range []desired.Path{desired.PathTunnel, desired.PathDirect, desired.PathRouters} {
		m.Peers.PodCIDRs.WithLabelValues(string(path)).Set(float64(len(desired.ByPath(d.Peers, path))))
	}
	m.Peers.Refused.Set(float64(len(d.Problems)))
}

// Flag is the value of a boolean gauge.
func Flag(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// Request counts one CNI request.
func (m *PodMetrics) Request(verb, code string, seconds float64) {
	m.Requests.WithLabelValues(verb, code).Observe(seconds)
}

// AddClient adds the number of requests to the API server.
func (m *Metrics) AddClient(client *kube.Client) {
	m.Registry.MustRegister(client.Requests)
}

// AddInputs adds the state of the inputs from the API server.
func (m *Metrics) AddInputs(k *inputs.Kubernetes) {
	function := func(name, help string, value func() float64) {
		m.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fairlead_" + name, Help: help}, value))
	}
	function("api_synced", "1 when all that the agent reads from the Kubernetes API is up to date, else 0.", func() float64 {
		s := k.Snapshot()
		return Flag(s.Trouble == nil && !s.Unread)
	})
	function("api_last_contact_timestamp_seconds", "When the agent last heard from the Kubernetes API server.",
		func() float64 { return float64(k.LastContact().UnixMilli()) / 1000 })
	for resource := range k.Failures() {
		m.Registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "fairlead_api_failures_total",
			Help:        "Requests to and watches of the Kubernetes API that failed.",
			ConstLabels: prometheus.Labels{"resource": resource},
		}, func() float64 { return float64(k.Failures()[resource]) }))
	}
}
