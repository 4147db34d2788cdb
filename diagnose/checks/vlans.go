package checks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/uplink/gateways"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// maxPerVLAN is how many pods of a VLAN are checked: a gateway that one of them reaches is reached by the others.
const maxPerVLAN = 3

// segment is a VLAN with the gateways that pods have in it.
type segment struct {
	vlan     uint16
	gateways string
}

// inVLAN is what a pod found.
type inVLAN struct {
	pod       api.Attachment
	gateway   error      // why none answers; nil: one does
	neighbour netip.Addr // one that answers and is not a pod of this node; not valid: none does
	probed    int        // how many such neighbours it knows
}

// vlans checks whether this node's bridged pods reach the gateways of their VLANs: the kernel probes them in the
// network namespaces of a few pods.
func (n *NodeProbe) vlans(ctx context.Context) (found []report.Finding, notKnown []string, err error) {
	if !n.Config.EnableBridgingMode {
		return nil, nil, nil
	}
	if os.Geteuid() != 0 {
		return nil, nil, errors.New("this needs root (sudo)")
	}
	db, err := nodestate.OVS(ctx, n.Config)
	if err != nil {
		return nil, nil, err
	}
	defer db.Close()
	o, err := db.Observe(n.Config.OVSBridge)
	if err != nil {
		return nil, nil, err
	}
	segments, local := map[segment][]api.Attachment{}, map[netip.Addr]bool{}
	for _, p := range o.Pods {
		for _, a := range p.Addrs {
			local[a.Addr()] = true
		}
		s := segment{p.VLAN, strings.Trim(fmt.Sprint(p.Gateways), "[]")}
		if p.Bridged && len(p.Gateways) > 0 && len(segments[s]) < maxPerVLAN {
			segments[s] = append(segments[s], p.Attachment)
		}
	}
	order := func(a, b segment) int {
		return cmp.Or(cmp.Compare(a.vlan, b.vlan), cmp.Compare(a.gateways, b.gateways))
	}
	for _, s := range slices.SortedFunc(maps.Keys(segments), order) {
		f, unknown := s.check(ctx, segments[s], local)
		found, notKnown = append(found, f...), append(notKnown, unknown...)
	}
	return found, notKnown, nil
}

// check probes from a few pods. local are the addresses of this node's pods, which answer wherever the VLAN ends.
func (s segment) check(ctx context.Context, pods []api.Attachment, local map[netip.Addr]bool) (
	found []report.Finding, notKnown []string) {
	known := make([]inVLAN, len(pods))
	var probing sync.WaitGroup
	for i, p := range pods {
		probing.Go(func() { known[i] = probeGateways(ctx, p, local) })
	}
	probing.Wait()
	var silent, answering []string
	others := 0
	for _, k := range known {
		switch {
		case k.gateway == nil:
			return nil, nil
		case errors.Is(k.gateway, errNotExamined):
			notKnown = append(notKnown, fmt.Sprintf("whether pod %s reaches its gateway: %v", k.pod.Pod(), k.gateway))
			continue
		case k.neighbour.IsValid():
			answering = append(answering, k.neighbour.String())
		}
		silent, others = append(silent, "pod "+k.pod.Pod()), others+k.probed
	}
	if len(silent) == 0 {
		return nil, notKnown
	}
	slices.Sort(answering)
	return []report.Finding{s.finding(silent, slices.Compact(answering), others)}, notKnown
}

// errNotExamined is in the error for a pod that could not be checked.
var errNotExamined = errors.New("its network namespace cannot be examined")

// probeGateways has the kernel probe a pod's gateways, and if none answers the neighbours that the pod knows.
func probeGateways(ctx context.Context, pod api.Attachment, local map[netip.Addr]bool) inVLAN {
	k := inVLAN{pod: pod}
	err := link.Within(pod.Netns, func() (err error) {
		k.gateway = within(ctx, func(ctx context.Context) error { return gateways.Check(ctx, pod.IfName) })
		if k.gateway == nil {
			return nil
		}
		other := func(a netip.Addr) bool { return !local[a] && !slices.Contains(pod.Gateways, a) }
		return within(ctx, func(ctx context.Context) error {
			k.neighbour, k.probed, err = gateways.Neighbour(ctx, pod.IfName, other)
			return err
		})
	})
	if err == nil && errors.Is(k.gateway, gateways.ErrNone) { // the pod has removed the route
		err = k.gateway
	}
	if err != nil {
		k.gateway = fmt.Errorf("%w: %w", errNotExamined, err)
	}
	return k
}

// within bounds f by the time that a gateway is waited for.
func within(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, gatewayWait)
	defer cancel()
	return f(ctx)
}

func (s segment) name() string {
	if s.vlan == 0 {
		return "the untagged network"
	}
	return fmt.Sprintf("VLAN %d", s.vlan)
}

// finding is about pods that no gateway answers. answering are other neighbours that do, and others is how many were
// probed: without any, a fault of the gateway cannot be distinguished from one of the VLAN.
func (s segment) finding(pods, answering []string, others int) report.Finding {
	f := report.Finding{Check: CheckVLANs, Severity: report.Failing, About: []string{s.name()},
		Evidence: []string{"probed by ARP and neighbour discovery, as " + report.Some(pods)}}
	tag := fmt.Sprint("vlan ", s.vlan)
	if s.vlan == 0 {
		tag = "not vlan"
	}
	port := report.Remedy{Text: fmt.Sprintf("Check on the switch that the port of this node's NIC carries %s, and what arrives", s.name()),
		Commands: []string{"fairlead-agent uplink status   # names the NIC", "tcpdump -eni NIC " + tag}}
	pool := report.Remedy{Text: "Check the gateway, and compare it and the VLAN with the IPPool's",
		Commands: []string{"kubectl get ippools -o yaml"}}
	elsewhere := report.Remedy{Text: "Run this check on another node: if it finds nothing there, the fault is at this node's switch port",
		Commands: []string{"fairleadctl doctor " + CheckVLANs}}
	silent := fmt.Sprintf("the gateway %s does not answer this node's bridged pods in %s", s.gateways, s.name())
	switch {
	case len(answering) > 0:
		f.Kind = "gateway-silent"
		f.Cause = silent + ", although frames pass: " + report.Some(answering) + " answers. Pods reach nothing outside their subnet"
		f.Remedies = []report.Remedy{pool}
	case others > 0:
		f.Kind = "vlan-silent"
		f.Cause = fmt.Sprintf("%s, and neither does %s: the VLAN's frames do not pass between this node and the network", silent,
			report.Count(others, "the other neighbour that they know", "any of %d other neighbours that they know"))
		f.Remedies = []report.Remedy{port, elsewhere}
	default:
		f.Kind = "gateway-silent"
		f.Cause = silent + ": it is down, or the VLAN's frames do not pass. The pods have no other neighbour that would show which"
		f.Remedies = []report.Remedy{elsewhere, port, pool}
	}
	return f
}
