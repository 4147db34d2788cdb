package policy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Direction is a connection's direction, as seen by the pod to which a policy applies.
type Direction uint8

const (
	Ingress Direction = 0
	Egress  Direction = 1
)

func (d Direction) String() string { return [...]string{"ingress", "egress"}[d] }

// Tier is a stage of the judgement, in this order.
type Tier uint8

const (
	Admin         Tier = 1
	NetworkPolicy Tier = 2
	Baseline      Tier = 3
)

func (t Tier) String() string {
	return [...]string{"default", "Admin", "NetworkPolicy", "Baseline"}[t]
}

// Verdict is what a rule does with a connection that it matches.
type Verdict uint8

const (
	Accept Verdict = 1
	Deny   Verdict = 2
	// Pass leaves the connection to the next tier.
	Pass Verdict = 3
)

func (v Verdict) String() string { return [...]string{"unknown", "Accept", "Deny", "Pass"}[v] }

// Protocol is the IANA number of a protocol with ports; 0 is any other.
type Protocol uint8

const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return "other"
}

// Ref names a policy.
type Ref struct {
	Kind            string // NetworkPolicy or ClusterNetworkPolicy
	Namespace, Name string
}

func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

// Policy is a NetworkPolicy or a ClusterNetworkPolicy.
type Policy struct {
	Ref
	Tier Tier
	// Priority orders the policies of Admin, and those of Baseline, lowest first.
	Priority int
	// Subject selects the pods to which the policy applies.
	Subject Subjects
	// Isolates says, by Direction, whether a NetworkPolicy isolates its pods.
	Isolates [2]bool
	// Rules are by Direction, in order.
	Rules [2][]Rule
	// Problems says what is not understood, and the consequence.
	Problems []string
}

// Subjects are pods. The zero value selects none.
type Subjects struct {
	// Namespace is the only one whose pods are selected. If it is empty, Namespaces selects them.
	Namespace  string
	Namespaces Selector
	Pods       Selector
}

// Rule matches connections between the pods to which its policy applies and the peers that it names.
type Rule struct {
	// Index is the rule's place in the API object, from 0; Name may be empty.
	Index   int
	Name    string
	Verdict Verdict
	// AnyPeer matches connections with every peer, pod or not. Otherwise the peer is one of Pods, of Networks, or a node.
	AnyPeer  bool
	Pods     []Subjects
	Networks []Network
	Nodes    []Selector
	// AnyPort matches every protocol. Otherwise the port is in Ports or NamedPorts.
	AnyPort    bool
	Ports      []PortRange
	NamedPorts []NamedPort
}

// Network is a range of addresses with exceptions.
type Network struct {
	CIDR netip.Prefix
	// Except are ranges inside CIDR, sorted, none contained in another.
	Except []netip.Prefix
}

func (n Network) String() string {
	text := n.CIDR.String()
	for _, e := range n.Except {
		text += " -" + e.String()
	}
	return text
}

// PortRange is a range of destination ports, both ends included. 0 to 65535 are all of the protocol.
type PortRange struct {
	Protocol    Protocol
	First, Last uint16
}

func (p PortRange) String() string {
	switch {
	case p.First == 0 && p.Last == 65535:
		return p.Protocol.String()
	case p.First == p.Last:
		return fmt.Sprintf("%d/%s", p.First, p.Protocol)
	}
	return fmt.Sprintf("%d-%d/%s", p.First, p.Last, p.Protocol)
}

// NamedPort is the port of that name, which has different numbers in different pods. Protocol is 0 for any.
type NamedPort struct {
	Protocol Protocol
	Name     string
}

func (p NamedPort) String() string {
	if p.Protocol == 0 {
		return p.Name
	}
	return p.Name + "/" + p.Protocol.String()
}

// Selector selects by labels. The zero value selects nothing.
type Selector struct {
	requirements labels.Selector
	// text is the same for equivalent selectors.
	text string
}

// Matches reports whether s selects an object with these labels.
func (s Selector) Matches(set map[string]string) bool {
	return s.requirements != nil && s.requirements.Matches(labels.Set(set))
}

// Everything reports whether s selects every object, whatever its labels.
func (s Selector) Everything() bool { return s.requirements != nil && s.requirements.Empty() }

// String is the same for equivalent selectors, and different for others.
func (s Selector) String() string {
	if s.requirements == nil {
		return "nothing"
	}
	return "{" + s.text + "}"
}

// MarshalJSON encodes the requirements as text, and null for a selector that selects nothing.
func (s Selector) MarshalJSON() ([]byte, error) {
	if s.requirements == nil {
		return []byte("null"), nil
	}
	return json.Marshal(s.text)
}

// UnmarshalJSON decodes the output of MarshalJSON.
func (s *Selector) UnmarshalJSON(data []byte) error {
	var text *string
	if err := json.Unmarshal(data, &text); err != nil || text == nil {
		*s = Selector{}
		return err
	}
	requirements, err := labels.Parse(*text)
	if err != nil {
		return err
	}
	*s = newSelector(requirements)
	return nil
}

// String is the same for equivalent Subjects, and different for others.
func (s Subjects) String() string {
	if s.Namespace != "" {
		return "pods " + s.Pods.String() + " of namespace " + s.Namespace
	}
	return "pods " + s.Pods.String() + " of namespaces " + s.Namespaces.String()
}

// AllPods selects every pod of every namespace.
func AllPods() Subjects { return Subjects{Namespaces: everything(), Pods: everything()} }

// newSelector sorts the requirements: those of one key are unordered otherwise.
func newSelector(s labels.Selector) Selector {
	requirements, selectable := s.Requirements()
	if !selectable {
		return Selector{}
	}
	texts := make([]string, 0, len(requirements))
	for _, r := range requirements {
		texts = append(texts, r.String())
	}
	slices.Sort(texts)
	return Selector{s, strings.Join(slices.Compact(texts), ",")}
}

// PodKey names a pod.
type PodKey struct{ Namespace, Name string }

func (k PodKey) String() string { return k.Namespace + "/" + k.Name }

// Pod is what policies see of a pod.
type Pod struct {
	PodKey
	// UID is the API object's, and ConfigHash is what a kubelet uses as UID for a static pod, whose API object has another
	// UID. Both may be empty.
	UID, ConfigHash string
	Labels          map[string]string
	// Addrs are the addresses with which others see the pod.
	Addrs []netip.Addr
	// Ports are the named ports.
	Ports []PodPort
	// HostNetwork is true for pods that have their node's addresses. No policy selects them.
	HostNetwork bool
	// Created is metadata.creationTimestamp, in seconds since 1970. If two pods have one address, it belongs to the later
	// one.
	Created int64
	// Local is true for pods on the node for which rules are compiled.
	Local bool
}

// Is reports whether p is the pod to which a kubelet gives a UID, and not an earlier or later one of the same name.
// Without a UID it returns true.
func (p Pod) Is(uid string) bool {
	return uid == "" || p.UID == "" || uid == p.UID || uid == p.ConfigHash
}

// PodPort is a port of a pod's container.
type PodPort struct {
	NamedPort
	Number uint16
}

func (p PodPort) String() string { return fmt.Sprintf("%s=%d", p.NamedPort, p.Number) }

// Has reports whether p is the port that a rule names.
func (p PodPort) Has(named NamedPort) bool {
	return p.Name == named.Name && (named.Protocol == 0 || named.Protocol == p.Protocol)
}

// Namespace is what policies see of a Namespace.
type Namespace struct {
	Name   string
	Labels map[string]string
	// LogDenied: what is denied for its pods is logged. It changes no verdict. A version that does not support it rejects
	// a file that has it, which is why it is written only if true.
	LogDenied bool `json:",omitempty"`
}

// Node is what policies see of a Node.
type Node struct {
	Name   string
	Labels map[string]string
	// Addrs are all source addresses of the node, also in the pod network.
	Addrs []netip.Addr
}
