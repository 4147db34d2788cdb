package selection

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
)

// Controller is the object whose controller has made another, as the ownerReference with
// controller: true says.
type Controller struct{ APIVersion, Kind, Name, UID string }

// kind is the object's if it is one that addresses are kept for.
func (c Controller) kind() string {
	group, _, _ := strings.Cut(c.APIVersion, "/")
	switch group + " " + c.Kind {
	case "apps StatefulSet", "apps Deployment", "apps ReplicaSet",
		"kubevirt.io VirtualMachine", "kubevirt.io VirtualMachineInstance":
		return c.Kind
	}
	return ""
}

// Passing tells that c is made anew from time to time by a controller of its own: then
// addresses are kept for that one's object.
func (c Controller) Passing() bool { return c.kind() == api.KindReplicaSet || c.kind() == api.KindVMI }

// LabelIndex is the label that says which one of its StatefulSet a pod is.
const LabelIndex = "apps.kubernetes.io/pod-index"

// Member is a Pod and where it comes from.
type Member struct {
	Object
	// Namespace and Pod are the Pod's.
	Namespace, Pod string
	// Index is the Pod's LabelIndex.
	Index string
	// Controller is the Pod's, zero where it has none.
	Controller Controller
}

// Ordinal is the pod's in its StatefulSet; false where it is of none.
func (m Member) Ordinal() (int, bool) {
	if m.Controller.kind() != api.KindStatefulSet {
		return 0, false
	}
	text := m.Index
	if text == "" { // Kubernetes before 1.28
		text, _ = strings.CutPrefix(m.Pod, m.Controller.Name+"-")
	}
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 0
}

// Sticky returns what the Pod asks for by its own annotation: "", api.StickyAddress or
// api.StickyMAC.
func (o Object) Sticky() (string, error) {
	switch v := o.value(api.AnnotationSticky); v {
	case "", api.StickyAddress, api.StickyMAC:
		return v, nil
	default:
		return "", fmt.Errorf("%s: annotation %s is %q: write %s, which keeps the pod's address, or %s, which keeps its address "+
			"and its MAC", o.Name, api.AnnotationSticky, v, api.StickyAddress, api.StickyMAC)
	}
}

// Keep says for whom the addresses of a pod are kept; nil for nobody. top is the object
// that lasts: the Pod's controller, or what stands above it where that is Passing. A MAC
// that is asked for is mac's.
func (m Member) Keep(top Controller, mac func(seed string) api.MAC) (*api.AllocationReservation, error) {
	asked, err := m.Sticky()
	if err != nil {
		return nil, err
	}
	ordinal, ofSet := m.Ordinal()
	if asked == "" && !ofSet {
		return nil, nil
	}
	if top.kind() == "" || !ofSet && top.kind() == api.KindStatefulSet {
		return nil, fmt.Errorf("%s: annotation %s: its owner is %s, so its successor cannot be identified. Addresses are reserved for pods of StatefulSets, of Deployments with one replica, and of KubeVirt's VMs. Remove the annotation, or name "+
			"an address with %s", m.Name, api.AnnotationSticky, top.text(), api.AnnotationPodIPs)
	}
	out := &api.AllocationReservation{Kind: top.kind(), Namespace: m.Namespace, Name: top.Name, UID: top.UID,
		Ordinal: ordinal}
	if asked == api.StickyMAC {
		out.MAC = mac(fmt.Sprintf("sticky %s %d", top.UID, ordinal)).String()
	}
	return out, nil
}

func (c Controller) text() string {
	if c.Kind == "" {
		return "no controller"
	}
	return c.Kind + " " + c.Name
}
