package status

import "github.com/prometheus/client_golang/prometheus"

// PolicyMetrics count what policies do on this node. A series is of a policy and a direction, whatever the number of
// pods; the policy has no name where a Namespace's NetworkPolicies deny together what none of their rules accepts.
type PolicyMetrics struct {
	Accepted, Dropped *prometheus.CounterVec
	Enforced          prometheus.Histogram
	// Seen counts denied packets that the log knows of, LeftOut those that it does not tell of.
	Seen, LeftOut prometheus.Counter
}

func newPolicyMetrics() PolicyMetrics {
	labels := []string{"kind", "namespace", "policy", "direction"}
	return PolicyMetrics{
		Accepted: counters("policy_accepted_connections_total", "Connections that rules of a policy have accepted; of SCTP, "+
			"packets. Read from Open vSwitch at each resync.", labels...),
		Dropped: counters("policy_dropped_packets_total", "Packets that rules of a policy have denied, or, without the name of "+
			"a policy, that no rule of the Namespace's NetworkPolicies accepts. Read from Open vSwitch at each resync.", labels...),
		Enforced: prometheus.NewHistogram(duration("policy_enforcement_duration_seconds", "Time from when the agent learns of a "+
			"change of policies, or of what they select, until Open vSwitch has confirmed its flows.")),
		Seen: prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_policy_denied_packets_seen_total",
			Help: "Denied packets that Open vSwitch has shown to the agent, for its log, as far as the limit allows."}),
		LeftOut: prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_policy_denied_packets_unlogged_total",
			Help: "Of the denied packets that were shown to the agent, those that are in no line of its log."}),
	}
}

func (m *PolicyMetrics) of(denies bool) *prometheus.CounterVec {
	if denies {
		return m.Dropped
	}
	return m.Accepted
}

// Count adds n to what a policy accepts or denies; it has a series from then on. labels are kind, namespace, name and
// direction.
func (m *PolicyMetrics) Count(denies bool, n uint64, labels ...string) {
	m.of(denies).WithLabelValues(labels...).Add(float64(n))
}

// Forget ends the series of a policy that does nothing here any more.
func (m *PolicyMetrics) Forget(denies bool, labels ...string) {
	m.of(denies).DeleteLabelValues(labels...)
}
