package selection

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
)

// Controller is the object whose controller has created another, as given by the ownerReference with controller: true.
type Controller struct{ APIVersion, Kind, Name, UID string }

// kind is the object's kind if addresses can be reserved for it.
func (c Controller) kind() string {
	group, _, _ := strings.Cut(c.APIVersion, "/")
	switch group + " " + c.Kind {
	case "apps StatefulSet", "apps Deployment", "apps ReplicaSet",
		"kubevirt.io VirtualMachine", "kubevirt.io VirtualMachineInstance":
		return c.Kind
	}
	return ""
}

// Passing reports whether c is itself recreated from time to time by a controller: then addresses are reserved for that
// controller's object.
func (c Controller) Passing() bool { return c.kind() == api.KindReplicaSet || c.kind() == api.KindVMI }

// LabelIndex is the label that has the ordinal of a pod in its StatefulSet.
const LabelIndex = "apps.kubernetes.io/pod-index"

// Member is a Pod and its controller.
type Member struct {
	Object
	// Namespace and Pod are the Pod's.
	Namespace, Pod string
	// Index is the Pod's LabelIndex.
	Index string
	// Controller is the Pod's, zero if it has none.
	Controller Controller
}

// Ordinal is the pod's in its StatefulSet; false if it belongs to none.
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

// Sticky returns what the Pod's own annotation asks for: "", api.StickyAddress or api.StickyMAC.
func (o Object) Sticky() (string, error) {
	switch v := o.value(api.AnnotationSticky); v {
	case "", api.StickyAddress, api.StickyMAC:
		return v, nil
	default:
		return "", fmt.Errorf("%s: annotation %s is %q: write %s, which keeps the pod's address, or %s, which keeps its address "+
			"and its MAC", o.Name, api.AnnotationSticky, short(v), api.StickyAddress, api.StickyMAC)
	}
}

// Keep returns the reservation for a pod's addresses; nil for none. top is the object that lasts: the Pod's controller,
// or the one above it where that is Passing. A requested MAC comes from mac.
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
