package ctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/diagnose/verdict"
	"github.com/fairlead-cni/fairlead/internal/cli"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

func policyShowCommand(conn *connection) *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:   "show [NAMESPACE/]POD",
		Short: "Lists the policies that apply to a pod, with their rules",
		Long: `show lists, by direction, which policies isolate a pod and which rules apply to it, in the order
in which they are evaluated. Rules with named ports are shown with the numbers that pods have.`,
		Example: `  fairleadctl policy show shop/db-0`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage(errors.New("want a pod: show shop/db-0"))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			end := parseEnd(args[0])
			if end.addr.IsValid() {
				return cli.Usage(fmt.Errorf("%s is an address, and policies apply to pods: name a pod", args[0]))
			}
			return conn.run(c, func(ctx context.Context, client *kube.Client) error {
				q, err := connQuery{from: end}.read(ctx, client)
				if err != nil {
					return err
				}
				s, err := q.show()
				if err != nil {
					return err
				}
				return out.write(c.OutOrStdout(), s, s.write)
			})
		},
	}
	out.add(c)
	return c
}

// podPolicies is the output of "policy show".
type podPolicies struct {
	Pod        string              `json:"pod"`
	Addresses  []string            `json:"addresses"`
	Directions []directionPolicies `json:"directions"`
	Problems   []string            `json:"problems,omitempty"`
}

type directionPolicies struct {
	Direction  string   `json:"direction"`
	IsolatedBy []string `json:"isolatedBy"`
	Rules      []string `json:"rules"`
}

// show is about the pod at the connection's first end.
func (q question) show() (podPolicies, error) {
	s := podPolicies{Pod: q.from.String(), Problems: q.Problems}
	addrs, err := q.addrs(q.from)
	if err != nil {
		return s, err
	}
	for _, a := range addrs {
		s.Addresses = append(s.Addresses, a.String())
	}
	all, _ := q.Compiler.InForce(q.from.pod)
	for _, in := range all {
		d := directionPolicies{Direction: in.Direction.String(), IsolatedBy: []string{}, Rules: []string{}}
		for _, ref := range in.IsolatedBy {
			d.IsolatedBy = append(d.IsolatedBy, ref.String())
		}
		for _, r := range in.Rules {
			d.Rules = append(d.Rules, inForceText(r))
		}
		s.Directions = append(s.Directions, d)
	}
	return s, nil
}

// inForceText is a rule as text: its verdict, peers and ports.
func inForceText(r compile.RuleInForce) string {
	peers, ports := "any peer", "any port"
	if len(r.Peers) > 0 {
		peers = strings.Join(r.Peers, "; ")
	}
	if len(r.Ports) > 0 {
		var texts []string
		for _, p := range r.Ports {
			texts = append(texts, p.String())
		}
		ports = strings.Join(texts, ", ")
	}
	between := " from "
	if r.Direction == policy.Egress {
		between = " to "
	}
	return fmt.Sprintf("%s: %s%s%s, %s", r.RuleRef, r.Verdict, between, peers, ports)
}

func (s podPolicies) write(p *report.Printer) {
	p.Line("%s (%s)", s.Pod, strings.Join(s.Addresses, ", "))
	for _, d := range s.Directions {
		switch {
		case len(d.IsolatedBy) > 0:
			p.Text(d.Direction+": ", "isolated by "+strings.Join(d.IsolatedBy, ", ")+": what no rule accepts is denied")
		case len(d.Rules) > 0:
			p.Text(d.Direction+": ", "isolated by no NetworkPolicy: what no rule denies is accepted")
		default:
			p.Text(d.Direction+": ", "no policy applies: everything is accepted")
		}
		for _, r := range d.Rules {
			p.Text("  - ", r)
		}
	}
	for _, problem := range s.Problems {
		p.Text("not understood: ", problem)
	}
}

func policyTraceCommand(conn *connection, node *localNode) *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:   "trace FROM TO[:PORT[/PROTOCOL]]",
		Short: "Shows what Open vSwitch on this node does with a connection, and compares it with the policies",
		Long: `trace has Open vSwitch on this node simulate the first packet of a connection (ofproto/trace), and shows
which tables it passes, whether policies deny it there, and what "policy explain" says. A difference between
the two is a bug in Fairlead, and the exit code is 3. At least one end must be a pod on this node; for what
is evaluated on another node, run the same command there. Nothing is sent. It needs root.`,
		Example: `  sudo fairleadctl policy trace shop/web-0 shop/db-0:5432
  sudo fairleadctl policy trace 192.0.2.7 shop/web-0:53/UDP`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return cli.Usage(errors.New("want two ends: trace shop/web-0 shop/db-0:5432"))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if os.Geteuid() != 0 {
				return errors.New("this needs root: sudo")
			}
			query, err := parseConnQuery(args[0], args[1])
			if err != nil {
				return cli.Usage(err)
			}
			cfg, err := node.load()
			if err != nil {
				return err
			}
			return conn.run(c, func(ctx context.Context, client *kube.Client) error {
				q, err := query.read(ctx, client)
				if err != nil {
					return err
				}
				sw, err := verdict.Open(ctx, cfg)
				if err != nil {
					return err
				}
				t, err := q.trace(ctx, sw)
				if err != nil {
					return err
				}
				if err := out.write(c.OutOrStdout(), t, t.write); err != nil || !t.differs() {
					return err
				}
				return cli.ExitCode(exitWarning)
			})
		},
	}
	out.add(c)
	return c
}

// tracedPolicies is the output of "policy trace": one answer for each pair of addresses.
type tracedPolicies struct {
	Explained explanation      `json:"explained"`
	Answers   []verdict.Answer `json:"answers"`
}

func (q question) trace(ctx context.Context, sw *verdict.Switch) (t tracedPolicies, err error) {
	if t.Explained, err = q.answer(); err != nil {
		return t, err
	}
	from, _ := q.addrs(q.from) // the answer has found them
	to, _ := q.addrs(q.to)
	for _, f := range from {
		for _, a := range to {
			if f.Is4() != a.Is4() {
				continue
			}
			answer, err := sw.Evaluate(ctx, q.Cluster, verdict.Connection{FromPod: q.from.pod, ToPod: q.to.pod, From: f, To: a,
				Protocol: q.protocol, Port: q.port})
			if err != nil {
				return t, err
			}
			t.Answers = append(t.Answers, answer)
		}
	}
	return t, nil
}

func (t tracedPolicies) differs() bool {
	for _, a := range t.Answers {
		if a.Differs != "" {
			return true
		}
	}
	return false
}

func (t tracedPolicies) write(p *report.Printer) {
	t.Explained.write(p)
	for _, a := range t.Answers {
		p.Line("packet %s", a.Packet)
		for _, s := range a.Steps {
			p.Line("%s", s)
		}
		if a.DeniedIn != "" {
			p.Text("Open vSwitch: ", "policies deny it, in table "+a.DeniedIn)
		} else {
			p.Text("Open vSwitch: ", "policies allow it, as far as this node evaluates them")
		}
		if a.Differs != "" {
			p.Text("differs: ", a.Differs+". This is a bug in Fairlead, unless the agent does not run, or policies, labels or "+
				"pods have just changed: run it again, and report it")
		}
	}
}
