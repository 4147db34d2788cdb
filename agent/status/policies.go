package status

import "github.com/prometheus/client_golang/prometheus"

// PolicyMetrics count what policies do on this node. There is one series per policy and direction, whatever the number
// of pods; the policy has no name if a Namespace's NetworkPolicies together deny what none of their rules accepts.
type PolicyMetrics struct {
	Accepted, Dropped *prometheus.CounterVec
	Enforced          prometheus.Histogram
	// Seen counts the denied packets that the log receives, LeftOut those of them that are not logged.
	Seen, LeftOut prometheus.Counter
}

func newPolicyMetrics() PolicyMetrics {
	labels := []string{"kind", "namespace", "policy", "direction"}
	return PolicyMetrics{
		Accepted: counters("policy_accepted_connections_total", "Connections that rules of a policy have accepted; for SCTP, "+
			"packets. Read from Open vSwitch at each resync.", labels...),
		Dropped: counters("policy_dropped_packets_total", "Packets that rules of a policy have denied, or, without the name of "+
			"a policy, that no rule of the Namespace's NetworkPolicies accepts. Read from Open vSwitch at each resync.", labels...),
		Enforced: prometheus.NewHistogram(duration("policy_enforcement_duration_seconds", "Time from when the agent learns of a "+
			"change of policies, or of what they select, until Open vSwitch has confirmed its flows.")),
		Seen: prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_policy_denied_packets_seen_total",
			Help: "Denied packets that Open vSwitch has passed to the agent, for its log, as far as the limit allows."}),
		LeftOut: prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_policy_denied_packets_unlogged_total",
			Help: "Denied packets passed to the agent that are in no line of its log."}),
	}
}

func (m *PolicyMetrics) of(denies bool) *prometheus.CounterVec {
	if denies {
		return m.Dropped
	}
	return m.Accepted
}

// Count adds n to what a policy accepts or denies; the policy has a series from then on. labels are kind, namespace,
// name and direction.
func (m *PolicyMetrics) Count(denies bool, n uint64, labels ...string) {
	m.of(denies).WithLabelValues(labels...).Add(float64(n))
}

// Forget ends the series of a policy that no longer has an effect here.
func (m *PolicyMetrics) Forget(denies bool, labels ...string) {
	m.of(denies).DeleteLabelValues(labels...)
}
