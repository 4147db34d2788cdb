package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/checks"
	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/internal/cli"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/kube"
)

func ipamCommand(conn *connection) *cobra.Command {
	return parent("ipam", "Shows, checks and releases addresses of IPPools", `ipam shows the owners of addresses of IPPools, checks them against the cluster, and
releases orphaned addresses.`, showCommand(conn), checkCommand(conn), releaseCommand(conn),
		importAntreaCommand(conn))
}

// filter selects allocations; empty fields select all.
type filter struct {
	pool, node, namespace, pod, address string
	all                                 bool
}

func (f filter) any() bool { return f != filter{} }

func (f filter) takes(a api.IPAllocation) bool {
	o := a.Spec.Owner
	pod := f.pod == "" || f.pod == o.Namespace+"/"+o.Name
	return (f.pool == "" || f.pool == a.Spec.Pool) && (f.node == "" || f.node == o.Node) && pod &&
		(f.namespace == "" || f.namespace == o.Namespace) && (f.address == "" || f.address == a.Spec.Address)
}

// shown is the output of "ipam show".
type shown struct {
	Pools       []cluster.PoolStatus `json:"pools"`
	Allocations []api.IPAllocation   `json:"allocations,omitempty"`
	listed      bool
}

func showCommand(conn *connection) *cobra.Command {
	var out output
	var f filter
	c := &cobra.Command{
		Use:   "show",
		Short: "Shows IPPools and the owners of their addresses",
		Long: `show lists the IPPools and their usage. With --all, or with any filter, it also lists
the allocations.

USED and TOTAL are counted by fairlead-controller; the phases are current: Allocated (a
pod has it), Reserved (for a pod that is not running), Cooling (just released),
Conflict (used by a host outside of the cluster).`,
		Example: `  fairleadctl ipam show
  fairleadctl ipam show --pool vlan10 --all
  fairleadctl ipam show --node worker-7
  fairleadctl ipam show --pod shop/db-0 -o yaml`,
		Args: cli.FlagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return conn.run(c, func(ctx context.Context, client *kube.Client) error {
				v := cluster.Read(ctx, client, cluster.Pools, cluster.Allocations)
				if err := v.Missing(cluster.Pools, cluster.Allocations); err != nil {
					return err
				}
				s, err := f.apply(v)
				if err != nil {
					return err
				}
				return out.write(c.OutOrStdout(), s, s.write)
			})
		},
	}
	out.add(c)
	c.Flags().StringVar(&f.pool, "pool", "", "only this IPPool")
	c.Flags().StringVar(&f.node, "node", "", "only addresses of pods on this node")
	c.Flags().StringVar(&f.namespace, "namespace", "", "only addresses of pods in this namespace")
	c.Flags().StringVar(&f.pod, "pod", "", "only addresses of this pod, NAMESPACE/NAME or NAME (in the namespace default)")
	c.Flags().StringVar(&f.address, "address", "", "only this address")
	c.Flags().BoolVar(&f.all, "all", false, "list all allocations")
	return c
}

// check validates the flags and normalises them.
func (f *filter) check() error {
	if f.pod != "" && !strings.Contains(f.pod, "/") {
		f.pod = cmp.Or(f.namespace, "default") + "/" + f.pod
	}
	if f.address == "" {
		return nil
	}
	a, err := netip.ParseAddr(f.address)
	if err != nil {
		return cli.Usage(fmt.Errorf("--address %s is not an IP address", f.address))
	}
	f.address = a.String()
	return nil
}

func (f filter) apply(v *cluster.View) (*shown, error) {
	s := &shown{Pools: v.PoolStatuses(), listed: f.any() && f != filter{pool: f.pool} || f.all}
	if f.pool != "" {
		s.Pools = slices.DeleteFunc(s.Pools, func(p cluster.PoolStatus) bool { return p.Name != f.pool })
		s.listed = true
		if len(s.Pools) == 0 {
			return nil, fmt.Errorf("there is no IPPool %s (fairleadctl ipam show lists all)", f.pool)
		}
	}
	for _, a := range v.Allocations {
		if s.listed && f.takes(a) {
			s.Allocations = append(s.Allocations, a)
		}
	}
	return s, nil
}

func (s *shown) write(p *report.Printer) {
	writePools(p, s.Pools)
	if len(s.Pools) == 0 {
		p.Line("There are no IPPools.")
	}
	if !s.listed {
		return
	}
	p.Line("")
	if len(s.Allocations) == 0 {
		p.Line("No allocation matches.")
		return
	}
	rows := [][]string{{"ADDRESS", "POOL", "PHASE", "OWNER", "NODE", "INTERFACE", "SINCE", "UNTIL"}}
	for _, a := range s.Allocations {
		o := a.Spec.Owner
		who := o.Namespace + "/" + o.Name
		if o.Name == "" {
			who = o.ContainerID
		}
		if r := a.Spec.Reservation; r != nil && a.Spec.Phase == api.PhaseReserved {
			who = fmt.Sprintf("%s %s/%s %d", r.Kind, r.Namespace, r.Name, r.Ordinal)
		}
		if a.Spec.Phase == api.PhaseConflict {
			who = "on the wire: " + a.Spec.MAC
		}
		until := ""
		if a.Spec.Until != nil {
			until = a.Spec.Until.UTC().Format(time.RFC3339)
		}
		rows = append(rows, []string{a.Name, a.Spec.Pool, phase(p, a.Spec.Phase), who, o.Node, o.IfName,
			a.CreationTimestamp.UTC().Format(time.RFC3339), until})
	}
	p.Table(rows...)
}

func phase(p *report.Printer, ph api.AllocationPhase) string {
	if ph == api.PhaseConflict {
		return p.Paint(report.Bad, string(ph))
	}
	return string(ph)
}

func writePools(p *report.Printer, pools []cluster.PoolStatus) {
	rows := [][]string{{"POOL", "STATE", "USED", "TOTAL", "ALLOCATED", "RESERVED", "COOLING", "CONFLICT", "VLAN", "NETWORK", "RANGES"}}
	for _, s := range pools {
		count := func(ph api.AllocationPhase) string { return fmt.Sprint(s.Phases[ph]) }
		rows = append(rows, []string{s.Name, state(p, s.State), fmt.Sprint(s.Used), fmt.Sprint(s.Total),
			count(api.PhaseAllocated), count(api.PhaseReserved), count(api.PhaseCooling), count(api.PhaseConflict),
			s.VLAN, s.Network, strings.Join(s.Ranges, ",")})
	}
	if len(pools) > 0 {
		p.Table(rows...)
	}
	for _, s := range pools {
		if s.Message != "" {
			p.Text("IPPool "+s.Name+": ", s.Message)
		}
	}
}

func checkCommand(conn *connection) *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:   "check",
		Short: "Checks for orphaned, duplicate and unallocated addresses",
		Long: `check compares the allocations with the Pods and Nodes of the cluster. It finds
allocations whose pod is gone, with the reason why they are not released yet; addresses
that two running pods have; pods with an address of a pool but no allocation; and
addresses for which an agent, when about to allocate them, found a host outside of the
cluster. It sends nothing to the underlay itself: a host that uses a pool's address
which no agent has probed is not found. It checks twice, two seconds apart, and reports
what both checks found. It is the same as "doctor leaks".

Exit codes: 0 no findings, 3 orphaned addresses, 4 pods share or may come to share an address.`,
		Example: `  fairleadctl ipam check
  fairleadctl ipam check -o json | jq -r '.findings[] | select(.kind == "leak") | .about[]'`,
		Args: cli.FlagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			return conn.run(c, func(ctx context.Context, client *kube.Client) error {
				r := checks.Examine(ctx, checks.Options{Checks: []string{checks.CheckLeaks}, Client: client,
					SecondLook: recheckAfter})
				if failed := r.Failed(); len(failed) > 0 {
					return errors.New(failed[0].Why)
				}
				return cmp.Or(out.write(c.OutOrStdout(), r, r.Write), exitOf(r))
			})
		},
	}
	out.add(c)
	return c
}

// release are the flags of "ipam release".
type release struct {
	conn            *connection
	out             output
	network, reason string
	force, yes      bool
}

// released is the output of "ipam release".
type released struct {
	cluster.Evidence
	Released bool   `json:"released"`
	Note     string `json:"note,omitempty"`
}

func releaseCommand(conn *connection) *cobra.Command {
	r := &release{conn: conn}
	c := &cobra.Command{
		Use:   "release ADDRESS",
		Short: "Releases an orphaned address",
		Long: `release shows the owner of an address and whether its pod and node exist, and releases
the address if it can no longer be in use. It asks for confirmation, unless --yes is
given. It refuses to release an address that may be in use; --force releases it anyway
and needs a --reason, which is recorded in an Event of the pool.

It releases exactly what it has shown: if the allocation changes meanwhile, nothing is
done. An address that a pod had cools for a minute before it is allocated again. If an
agent serves the pod after all, it allocates the address to it again.`,
		Example: `  fairleadctl ipam release 10.2.0.17
  fairleadctl ipam release 10.2.0.17 --yes
  fairleadctl ipam release 10.2.0.17 --force --reason "node-3 was scrapped"
  fairleadctl ipam release fd00:10:2::17 --network storage`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage(errors.New("exactly one address is required: fairleadctl ipam release ADDRESS"))
			}
			return nil
		},
		RunE: r.run,
	}
	r.out.add(c)
	c.Flags().StringVar(&r.network, "network", "", "the isolated network of the address (annotation "+api.AnnotationNetwork+" of its pool)")
	c.Flags().BoolVar(&r.force, "force", false, "release it although it may be in use")
	c.Flags().StringVar(&r.reason, "reason", "", "why it is released manually; required with --force")
	c.Flags().BoolVar(&r.yes, "yes", false, "do not ask for confirmation")
	return c
}

func (r *release) name(arg string) (string, error) {
	a, err := netip.ParseAddr(arg)
	if err != nil {
		if _, _, perr := allocation.ParseName(arg); perr == nil && r.network == "" {
			return arg, nil // as "ipam show" and kubectl print it
		}
		return "", cli.Usage(fmt.Errorf("%q is not an IP address", arg))
	}
	return allocation.Name(r.network, a), nil
}

func (r *release) run(c *cobra.Command, args []string) error {
	name, err := r.name(args[0])
	if err != nil {
		return err
	}
	if r.force && strings.TrimSpace(r.reason) == "" {
		return cli.Usage(errors.New("--force requires --reason: why it is safe to allocate the address to another pod"))
	}
	client, err := r.conn.client()
	if err != nil {
		return err
	}
	ctx, cancel := r.conn.within(c)
	defer cancel()
	e, err := cluster.EvidenceOf(ctx, client, name)
	if errors.Is(err, allocation.ErrNotFound) {
		return fmt.Errorf("%s is not allocated: there is no IPAllocation with that name", name)
	}
	if err != nil {
		return err
	}
	if err := r.agreed(c, e); err != nil {
		return err
	}
	ctx, again := r.conn.within(c) // the answer may have taken a while
	defer again()
	err, eventErr := cluster.Release(ctx, client, e, r.reason)
	if err != nil {
		return err
	}
	done := released{Evidence: e, Released: true, Note: e.Released()}
	if eventErr != nil {
		done.Note += fmt.Sprintf(". Writing an Event about it failed: %v", eventErr)
	}
	return r.out.write(c.OutOrStdout(), done, func(p *report.Printer) { p.Line("released %s: %s.", name, done.Note) })
}

// agreed shows the evidence and returns nil if the user agrees to release the address.
func (r *release) agreed(c *cobra.Command, e cluster.Evidence) error {
	p := report.New(c.ErrOrStderr(), coloured(c.ErrOrStderr()))
	p.Line("%s, IPPool %s, %s since %s", e.Allocation.Name, e.Allocation.Spec.Pool, e.Allocation.Spec.Phase,
		e.Allocation.CreationTimestamp.UTC().Format(time.RFC3339))
	for _, line := range e.Lines() {
		p.Text("  ", line)
	}
	if e.Verdict != cluster.Gone && !r.force {
		return fmt.Errorf("%s is not released: %s. The next pod would share it. If you are sure: --force --reason TEXT",
			e.Allocation.Name, e.WhyNot())
	}
	if r.yes {
		return p.Err()
	}
	return confirm(c, "use --yes to release it", "Release it?", "not released")
}
