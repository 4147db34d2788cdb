package ctl

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/diagnose/verdict"
	"github.com/fairlead-cni/fairlead/internal/cli"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

func policyCommand(conn *connection, node *localNode) *cobra.Command {
	return parent("policy", "Explains what policies allow", `policy explains what NetworkPolicies and ClusterNetworkPolicies
allow and why, by the same rules from which agents with networkPolicies: enforce make flows. It reads the
Kubernetes API; trace also queries Open vSwitch on this node.`, policyExplainCommand(conn), policyShowCommand(conn),
		policyTraceCommand(conn, node))
}

func policyExplainCommand(conn *connection) *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:   "explain FROM TO[:PORT[/PROTOCOL]]",
		Short: "Explains whether policies allow a connection",
		Long: `explain shows whether policies allow a new connection, which of them isolate the pods at its
ends, which rule allows or denies it, and, if none does, which come close. Each end is a pod
([NAMESPACE/]POD) or an address (IPv6 in brackets); the protocol is TCP, UDP or SCTP. For a
Service, name one of its endpoints: policies see these, not ClusterIPs.

It shows what the policies mean; "fairleadctl policy trace" shows what Open vSwitch does.`,
		Example: `  fairleadctl policy explain shop/web-0 shop/db-0:5432
  fairleadctl policy explain 192.0.2.7 shop/web-0:53/UDP`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return cli.Usage(errors.New("want two ends: explain shop/web-0 shop/db-0:5432"))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			query, err := parseConnQuery(args[0], args[1])
			if err != nil {
				return cli.Usage(err)
			}
			return conn.run(c, func(ctx context.Context, client *kube.Client) error {
				q, err := query.read(ctx, client)
				if err != nil {
					return err
				}
				a, err := q.answer()
				if err != nil {
					return err
				}
				return out.write(c.OutOrStdout(), a, a.write)
			})
		},
	}
	out.add(c)
	return c
}

// connQuery is the connection in question: each end is a pod or an address.
type connQuery struct {
	from, to connectionEnd
	protocol policy.Protocol
	port     uint16
}

type connectionEnd struct {
	pod  policy.PodKey
	addr netip.Addr
}

func (e connectionEnd) String() string {
	if e.addr.IsValid() {
		return e.addr.String()
	}
	return e.pod.String()
}

func parseConnQuery(from, to string) (a connQuery, err error) {
	a.protocol = policy.TCP
	to, protocol, named := strings.Cut(to, "/UDP")
	if !named {
		if to, protocol, named = strings.Cut(to, "/SCTP"); named {
			a.protocol = policy.SCTP
		}
		to, _ = strings.CutSuffix(to, "/TCP")
	} else {
		a.protocol = policy.UDP
	}
	if protocol != "" {
		return a, fmt.Errorf("%q after the protocol", protocol)
	}
	a.from = parseEnd(from)
	if bare, aerr := netip.ParseAddr(strings.Trim(to, "[]")); aerr == nil {
		a.to.addr, a.protocol = bare.Unmap(), 0
		return a, nil
	}
	name, port, withPort := cutLast(to, ":")
	a.to = parseEnd(name)
	if !withPort {
		a.protocol = 0 // any protocol without ports
		return a, nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return a, fmt.Errorf("%q is not a port number from 1 to 65535", port)
	}
	a.port = uint16(n)
	return a, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func parseEnd(text string) connectionEnd {
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return connectionEnd{addr: a.Unmap()}
	}
	namespace, name, ok := strings.Cut(text, "/")
	if !ok {
		namespace, name = metav1.NamespaceDefault, text
	}
	return connectionEnd{pod: policy.PodKey{Namespace: namespace, Name: name}}
}

// question is a connection, and the cluster's state that decides about it.
type question struct {
	connQuery
	*verdict.Cluster
}

// read reads the cluster's state.
func (a connQuery) read(ctx context.Context, client *kube.Client) (question, error) {
	c, err := verdict.Read(ctx, client, a.isEnd)
	return question{a, c}, err
}

// isEnd reports whether a pod is an end of the connection.
func (a connQuery) isEnd(key policy.PodKey) bool { return key == a.from.pod || key == a.to.pod }

// explanation is the output of "policy explain".
type explanation struct {
	From     string   `json:"from"`
	To       string   `json:"to"`
	Port     uint16   `json:"port,omitempty"`
	Protocol string   `json:"protocol"`
	Allowed  bool     `json:"allowed"`
	Why      []string `json:"why"`
	Problems []string `json:"problems,omitempty"`
}

func (a explanation) write(p *report.Printer) {
	verdict := map[bool]string{true: "allowed", false: "denied"}[a.Allowed]
	port := map[bool]string{true: fmt.Sprintf(" port %d", a.Port)}[a.Port != 0]
	p.Line("%s to %s%s (%s): %s", a.From, a.To, port, a.Protocol, verdict)
	for _, why := range a.Why {
		p.Text("- ", why)
	}
	for _, problem := range a.Problems {
		p.Text("not understood: ", problem)
	}
}

// answer judges the connection at both ends, for each pair of addresses of one family.
func (q question) answer() (explanation, error) {
	a := explanation{From: q.from.String(), To: q.to.String(), Port: q.port, Protocol: q.protocol.String(), Allowed: true,
		Problems: q.Problems}
	from, err := q.addrs(q.from)
	if err != nil {
		return a, err
	}
	to, err := q.addrs(q.to)
	if err != nil {
		return a, err
	}
	pairs := 0
	for _, f := range from {
		for _, t := range to {
			if f.Is4() != t.Is4() {
				continue
			}
			pairs++
			q.judge(&a, policy.Egress, q.from, t)
			q.judge(&a, policy.Ingress, q.to, f)
		}
	}
	if pairs == 0 {
		return a, fmt.Errorf("%s and %s have no addresses of the same family", q.from, q.to)
	}
	return a, nil
}

func (q question) addrs(e connectionEnd) ([]netip.Addr, error) {
	if e.addr.IsValid() {
		return []netip.Addr{e.addr}, nil
	}
	p, found := q.Pods[e.pod]
	switch {
	case !found:
		return nil, fmt.Errorf("there is no running Pod %s", e.pod)
	case p.HostNetwork:
		return nil, fmt.Errorf("Pod %s has its node's addresses, and no policy selects it: give its address instead", e.pod)
	case len(p.Addrs) == 0:
		return nil, fmt.Errorf("Pod %s has no address yet", e.pod)
	}
	return p.Addrs, nil
}

// judge adds what the rules of one end say.
func (q question) judge(a *explanation, d policy.Direction, end connectionEnd, peer netip.Addr) {
	if end.addr.IsValid() {
		return
	}
	v, ok := q.Compiler.Judge(compile.Connection{
		Direction: d, Pod: end.pod, Peer: peer, Protocol: q.protocol, Port: q.port})
	if !ok {
		return
	}
	a.Allowed = a.Allowed && v.Verdict == policy.Accept
	for _, why := range q.why(d, end, peer, v) { // mostly the same for both families
		if !slices.Contains(a.Why, why) {
			a.Why = append(a.Why, why)
		}
	}
}

// why are the sentences about one verdict.
func (q question) why(d policy.Direction, end connectionEnd, peer netip.Addr, v compile.Decision) []string {
	out := []string{fmt.Sprintf("%s of %s: %s", d, end.pod, v.Reason())}
	for _, m := range v.Misses {
		if m.Peer {
			ports := make([]string, 0, len(m.Ports))
			for _, p := range m.Ports {
				ports = append(ports, p.String())
			}
			out = append(out,
				fmt.Sprintf("%s accepts this peer, but only to %s", m.Rule, strings.Join(ports, ", ")))
		} else {
			out = append(out, fmt.Sprintf("%s accepts this port, but not the peer %s", m.Rule, peer))
		}
	}
	return out
}
