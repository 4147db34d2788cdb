package checks

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

func (o Options) leaks(ctx context.Context) (found []report.Finding, notKnown []string, err error) {
	found, err = checkTwice(ctx, o.SecondLook, func(ctx context.Context) ([]report.Finding, error) {
		v := cluster.Read(ctx, o.Client, cluster.Nodes, cluster.Pods, cluster.Pools, cluster.Allocations, cluster.Leader)
		if err := v.Missing(cluster.Allocations, cluster.Pools, cluster.Pods, cluster.Nodes); err != nil {
			return nil, err
		}
		notKnown = nil
		if reserved(v) { // the agent, whose rights these may be, may not read the objects that they are reserved for
			k := cluster.Read(ctx, o.Client, cluster.ReservationOwners)
			v.ReservationOwners = k.ReservationOwners
			if err := k.Missing(cluster.ReservationOwners); apierrors.IsForbidden(err) {
				notKnown = []string{"whether the owners of reserved addresses are gone: " + err.Error()}
			} else if err != nil {
				return nil, err
			}
		}
		return addressFindings(v), nil
	})
	return found, notKnown, err
}

// reserved reports whether there are reserved addresses, which StatefulSets and others keep beyond their pods.
func reserved(v *cluster.View) bool {
	return slices.ContainsFunc(v.Allocations, func(a api.IPAllocation) bool { return a.Spec.Phase == api.PhaseReserved })
}

// addressFindings compares the owners of allocations with the pods that have the addresses.
func addressFindings(v *cluster.View) []report.Finding {
	return slices.Concat(orphaned(v), duplicates(v), unallocated(v), conflicts(v))
}

// orphaned finds allocations whose owner is gone, grouped by node and reason.
func orphaned(v *cluster.View) []report.Finding {
	type group struct {
		node, why string
		verdict   cluster.Verdict
		reserved  bool
	}
	groups := map[group][]cluster.Evidence{}
	var order []group
	for _, e := range v.Evidences() {
		phase := e.Allocation.Spec.Phase
		counts := phase == api.PhaseAllocated && (e.Verdict == cluster.Gone || e.Verdict == cluster.MayLive && e.Waits != "") ||
			phase == api.PhaseReserved && e.Verdict == cluster.Gone
		if !counts {
			continue
		}
		g := group{e.Allocation.Spec.Owner.Node, e.Waits, e.Verdict, phase == api.PhaseReserved}
		if groups[g] == nil {
			order = append(order, g)
		}
		groups[g] = append(groups[g], e)
	}
	var out []report.Finding
	for _, g := range order {
		f := leak(groups[g])
		switch {
		case g.reserved:
			f.Kind, f.Cause = "reservation-leak", f.Cause+" kept for owners that are gone: "+g.why
		case g.verdict == cluster.MayLive:
			f.Kind = "kept-for-node"
			f.Cause = fmt.Sprintf("%s held by pods that are gone from the API, on node %s, which is not Ready: %s", f.Cause, g.node, g.why)
			f.Remedies = nodeIsGone(g.node)
		default:
			f.Kind, f.Cause = "leak", f.Cause+" held by pods that are gone: "+g.why
			f.Remedies = []report.Remedy{{Text: "Wait a few minutes. If they stay, release them manually",
				Commands: []string{"fairleadctl ipam release " + f.About[0]}}}
		}
		out = append(out, f)
	}
	return out
}

// leak is a finding about several addresses.
func leak(list []cluster.Evidence) report.Finding {
	f := report.Finding{Check: CheckLeaks, Severity: report.Warning, Cause: report.Count(len(list), "1 address is", "%d addresses are")}
	for i, e := range list {
		f.About = append(f.About, e.Allocation.Name)
		if e.Waits = ""; i < 5 { // the cause says it
			f.Evidence = append(f.Evidence, fmt.Sprintf("%s of IPPool %s: %s", e.Allocation.Name, e.Allocation.Spec.Pool,
				strings.Join(e.Lines(), "; ")))
		}
	}
	if len(list) > 5 {
		f.Evidence = append(f.Evidence, fmt.Sprintf("and %d more (fairleadctl ipam check -o json has all)", len(list)-5))
	}
	return f
}

// nodeIsGone are the ways to declare that no pod runs on a node.
func nodeIsGone(node string) []report.Remedy {
	return []report.Remedy{
		{Text: "If the node will not come back, delete it", Commands: []string{"kubectl delete node " + node}},
		{Text: "If it is certain that the node is switched off, mark it as out of service with a taint, and remove the taint when it is back",
			Commands: []string{"kubectl taint node " + node + " node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"},
			Beware:   []string{"Do not mark a node that still runs pods: their addresses would be allocated to others"}},
	}
}

// duplicates finds addresses that two running pods have.
func duplicates(v *cluster.View) []report.Finding {
	by := map[netip.Addr][]cluster.Pod{}
	var order []netip.Addr
	for _, p := range v.Pods {
		if p.HostNetwork || p.Ended {
			continue
		}
		for _, a := range p.IPs {
			if p.Leaving && !holds(v, a, p) {
				continue // the pod has released the address
			}
			if by[a] == nil {
				order = append(order, a)
			}
			by[a] = append(by[a], p)
		}
	}
	var out []report.Finding
	for _, a := range order {
		if len(by[a]) < 2 {
			continue
		}
		f := report.Finding{Check: CheckLeaks, Kind: "duplicate", Severity: report.Failing, About: []string{a.String()},
			Cause: fmt.Sprintf("%d running pods have the address %s: traffic may reach the wrong one", len(by[a]), a)}
		var spare cluster.Pod
		for _, p := range by[a] {
			f.Evidence = append(f.Evidence, fmt.Sprintf("Pod %s (UID %s) on node %s", p, p.UID, p.Node))
			if !holds(v, a, p) {
				spare = p
			}
		}
		if spare.Name == "" {
			spare = by[a][len(by[a])-1]
		}
		f.Remedies = []report.Remedy{{Text: "Delete the pod that it is not allocated to, so that it is recreated with another address",
			Commands: []string{"fairleadctl doctor pod-cidr   # if the address is in a podCIDR", deletePod(spare)}}}
		out = append(out, f)
	}
	return out
}

func deletePod(p cluster.Pod) string { return "kubectl -n " + p.Namespace + " delete pod " + p.Name }

// holds reports whether the address is allocated to the pod.
func holds(v *cluster.View, a netip.Addr, p cluster.Pod) bool {
	return slices.ContainsFunc(v.Allocations, func(h api.IPAllocation) bool {
		return h.Name == allocation.Name("", a) && h.Spec.Phase == api.PhaseAllocated && p.Is(h.Spec.Owner.PodUID)
	})
}

// unallocated finds pods with an address of a pool that is not allocated to them: other pods may get it.
func unallocated(v *cluster.View) []report.Finding {
	held := map[string]api.IPAllocation{}
	for _, a := range v.Allocations {
		held[a.Name] = a
	}
	pools := podPools(v)
	var out []report.Finding
	for _, p := range v.Pods {
		if p.HostNetwork || p.Ended || p.Leaving {
			continue
		}
		for _, a := range p.IPs {
			i := slices.IndexFunc(pools, func(q pool.Pool) bool { return q.Contains(a) })
			h, known := held[allocation.Name("", a)]
			f := report.Finding{Check: CheckLeaks, Severity: report.Failing, About: []string{a.String(), p.String()},
				Evidence: []string{fmt.Sprintf("Pod %s (UID %s) on node %s has %s in status.podIPs", p, p.UID, p.Node, a)},
				Remedies: []report.Remedy{{Text: "Delete the pod, so that it is recreated with its own address", Commands: []string{deletePod(p)}}}}
			switch {
			case known && h.Spec.Phase == api.PhaseAllocated && p.Is(h.Spec.Owner.PodUID), !known && i < 0:
				continue
			case !known:
				f.Kind = "not-held"
				f.Cause = fmt.Sprintf("pod %s has the address %s of IPPool %s, but no IPAllocation: it may be allocated to another pod. The agent of node %s recreates the allocations of its pods within 5 minutes", p, a, pools[i].Name, p.Node)
			default:
				f.Kind = "held-by-other"
				f.Cause = fmt.Sprintf("pod %s has the address %s, which is allocated to %s (%s)", p, a, h.Spec.Owner, h.Spec.Phase)
				f.Evidence = append(f.Evidence, "kubectl get ipallocation "+h.Name+" -o yaml")
			}
			out = append(out, f)
		}
	}
	return out
}

// podPools are the valid pools of pods' addresses.
func podPools(v *cluster.View) []pool.Pool {
	var out []pool.Pool
	for _, p := range v.Pools {
		if read, err := pool.Read(p); err == nil && read.Scope == "" {
			out = append(out, read)
		}
	}
	return out
}

// conflicts finds addresses that hosts outside of the cluster use.
func conflicts(v *cluster.View) []report.Finding {
	var out []report.Finding
	for _, e := range v.Evidences() {
		a := e.Allocation
		if a.Spec.Phase != api.PhaseConflict {
			continue
		}
		out = append(out, report.Finding{Check: CheckLeaks, Kind: "conflict", Severity: report.Warning, About: []string{a.Name},
			Cause:    fmt.Sprintf("%s of IPPool %s is used by a host outside of the cluster: it is not allocated to pods", a.Spec.Address, a.Spec.Pool),
			Evidence: e.Lines(),
			Remedies: []report.Remedy{{Text: "Find the host with this MAC address and change its IP address, or exclude the address from the pool",
				Commands: []string{"kubectl edit ippool " + a.Spec.Pool + "   # spec.excludes: [" + a.Spec.Address + "]"}}}})
	}
	return out
}
