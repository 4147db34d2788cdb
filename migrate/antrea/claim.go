package antrea

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// statusAnnotation lists each interface of a pod with its addresses, as the network plumbing group specifies.
const statusAnnotation = "k8s.v1.cni.cncf.io/network-status"

// world is the state in the API server: Pods and StatefulSets by "NAMESPACE/NAME", Nodes by name, and the names of
// NetworkAttachmentDefinitions' networks by "NAMESPACE/NAME".
type world struct {
	pods     map[string]*corev1.Pod
	sets     map[string]*appsv1.StatefulSet
	nodes    map[string]*corev1.Node
	networks map[string]string
	// main is the name of Fairlead's own network.
	main string
}

// claim is the allocation for an entry of a pool, or an error that says what cannot be verified.
func (w world) claim(p pool.Pool, e Entry) (api.IPAllocation, error) {
	addr, err := netip.ParseAddr(e.IPAddress)
	if err != nil {
		return api.IPAllocation{}, fmt.Errorf("%q is not an IP address", e.IPAddress)
	}
	if err := p.Check(addr); err != nil {
		return api.IPAllocation{}, err
	}
	a := api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: allocation.Name(p.Scope, addr)},
		Spec: api.IPAllocationSpec{Address: addr.String(), Pool: p.Name}}
	switch {
	case e.Owner.Pod != nil:
		err = w.pod(&a.Spec, addr, *e.Owner.Pod)
		if err != nil && e.Owner.StatefulSet != nil { // the address may be reserved nevertheless
			if w.reserved(&a.Spec, addr, *e.Owner.StatefulSet) == nil {
				err = nil
			}
		}
	case e.Owner.StatefulSet != nil:
		err = w.reserved(&a.Spec, addr, *e.Owner.StatefulSet)
	default:
		err = errors.New("the entry has no owner")
	}
	return a, err
}

// pod fills in the pod that has the address.
func (w world) pod(s *api.IPAllocationSpec, addr netip.Addr, o PodOwner) error {
	p := w.pods[o.Namespace+"/"+o.Name]
	switch {
	case p == nil:
		return errors.New("the Pod no longer exists")
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return errors.New("the Pod has finished")
	case p.Spec.NodeName == "":
		return errors.New("the Pod is not scheduled")
	case o.ContainerID == "":
		return errors.New("the entry has no container ID")
	}
	owner := api.AllocationOwner{PodUID: string(p.UID), Namespace: p.Namespace, Name: p.Name, ContainerID: o.ContainerID,
		IfName: "eth0", Network: w.main, Node: p.Spec.NodeName, BootID: bootOf(w.nodes[p.Spec.NodeName])}
	if o.IFName == "" || o.IFName == "eth0" {
		if has := podAddrs(p); !slices.Contains(has, addr) {
			return fmt.Errorf("the Pod has %s instead", list(has))
		}
		s.Reservation = w.reservationOf(p)
	} else {
		network, has := interfaceOf(p, o.IFName)
		if !slices.Contains(has, addr) {
			return fmt.Errorf("the Pod's annotation %s does not list it for interface %s, but %s", statusAnnotation,
				o.IFName, list(has))
		}
		owner.IfName, owner.IPAMOnly, owner.Network = o.IFName, true, w.network(p.Namespace, network)
	}
	s.Phase, s.Owner = api.PhaseAllocated, owner
	return nil
}

// reserved fills in the StatefulSet for whose pod the address is reserved.
func (w world) reserved(s *api.IPAllocationSpec, addr netip.Addr, o StatefulSetOwner) error {
	set := w.sets[o.Namespace+"/"+o.Name]
	if set == nil {
		return fmt.Errorf("the StatefulSet %s/%s no longer exists", o.Namespace, o.Name)
	}
	first, replicas := 0, 1
	if set.Spec.Ordinals != nil {
		first = int(set.Spec.Ordinals.Start)
	}
	if set.Spec.Replicas != nil {
		replicas = int(*set.Spec.Replicas)
	}
	if o.Index < first || o.Index >= first+replicas {
		return fmt.Errorf("the StatefulSet has no pod with ordinal %d: it was scaled to %d", o.Index, replicas)
	}
	if p := w.pods[fmt.Sprintf("%s/%s-%d", o.Namespace, o.Name, o.Index)]; p != nil {
		for _, has := range podAddrs(p) {
			if has.Is4() == addr.Is4() && has != addr {
				return fmt.Errorf("its Pod %s/%s has %s", p.Namespace, p.Name, has)
			}
		}
	}
	s.Phase, s.Owner = api.PhaseReserved, api.AllocationOwner{}
	s.Reservation = &api.AllocationReservation{Kind: api.KindStatefulSet, Namespace: set.Namespace, Name: set.Name,
		UID: string(set.UID), Ordinal: o.Index}
	return nil
}

// reservationOf is the reservation of a StatefulSet's pod, which keeps its address.
func (w world) reservationOf(p *corev1.Pod) *api.AllocationReservation {
	by := metav1.GetControllerOf(p)
	if by == nil || by.Kind != api.KindStatefulSet {
		return nil
	}
	set := w.sets[p.Namespace+"/"+by.Name]
	ordinal, err := strconv.Atoi(p.Name[strings.LastIndexByte(p.Name, '-')+1:])
	if set == nil || set.UID != by.UID || err != nil {
		return nil
	}
	return &api.AllocationReservation{Kind: api.KindStatefulSet, Namespace: p.Namespace, Name: by.Name,
		UID: string(by.UID), Ordinal: ordinal}
}

// bootOf is a node's boot ID, if its kubelet reports now: pods of another boot are gone.
func bootOf(n *corev1.Node) string {
	if n == nil {
		return ""
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return n.Status.NodeInfo.BootID
		}
	}
	return ""
}

func podAddrs(p *corev1.Pod) (out []netip.Addr) {
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// interfaceOf is what the annotation says about one interface of a pod.
func interfaceOf(p *corev1.Pod, name string) (network string, addrs []netip.Addr) {
	var all []struct {
		Name, Interface string
		IPs             []string
	}
	if json.Unmarshal([]byte(p.Annotations[statusAnnotation]), &all) != nil { // then it proves nothing
		return "", nil
	}
	for _, s := range all {
		if s.Interface != name {
			continue
		}
		for _, ip := range s.IPs {
			if a, err := netip.ParseAddr(ip); err == nil {
				addrs = append(addrs, a)
			}
		}
		return s.Name, addrs
	}
	return "", nil
}

// network is the name in an attachment's configuration, which CNI calls then carry; without one it is the name of the
// NetworkAttachmentDefinition.
func (w world) network(namespace, attachment string) string {
	if !strings.Contains(attachment, "/") {
		attachment = namespace + "/" + attachment
	}
	if name := w.networks[attachment]; name != "" {
		return name
	}
	return attachment[strings.IndexByte(attachment, '/')+1:]
}

// list is addresses as text.
func list(addrs []netip.Addr) string {
	if len(addrs) == 0 {
		return "none"
	}
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}
