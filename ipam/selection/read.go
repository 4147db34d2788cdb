// Package selection determines the IPPools from which a pod gets its addresses, by the annotations of the Pod and of
// its Namespace. It is pure: the state of pools and cluster is passed in. Every error is a message for the pod's author
// or the cluster's administrator: it names the object and says what to change.
package selection

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// Object is a Pod or a Namespace, as far as it matters here.
type Object struct {
	// Name is for messages: "Pod default/web-0", "Namespace default".
	Name        string
	Annotations map[string]string
}

// PoolRequest is what a pod asks for, or a StatefulSet for all of its pods.
type PoolRequest struct {
	// Pools are names of IPPools, one or more, in the order to try them.
	Pools []string
	// From is the object that names them.
	From string
	// PodIPs are the addresses that the pod requests, at most one of each family, and IPsFrom the object that names
	// them. Empty: any address. A StatefulSet lists those of its pods in order, in each family.
	PodIPs  []netip.Addr
	IPsFrom string
}

// RequestsPool reports whether a pod asks for an address of an IPPool at all, even by an invalid annotation.
func RequestsPool(pod, namespace Object) bool {
	return slices.ContainsFunc([]Object{pod, namespace}, func(o Object) bool {
		return o.value(api.AnnotationPools) != "" || o.value(api.AnnotationPodIPs) != ""
	})
}

// Read returns what a pod that is not a StatefulSet's asks for.
func Read(pod, namespace Object) (PoolRequest, error) {
	w, err := ReadSet(pod, namespace)
	if err != nil {
		return PoolRequest{}, err
	}
	for i, a := range w.PodIPs {
		if j := slices.IndexFunc(w.PodIPs[:i], func(b netip.Addr) bool { return a.Is4() == b.Is4() }); j >= 0 {
			return PoolRequest{}, fmt.Errorf("%s: annotation %s names two IPv%d addresses, %s and %s: a pod has one of each family. "+
				"Remove one", w.IPsFrom, api.AnnotationPodIPs, netaddr.Family(a), w.PodIPs[j], a)
		}
	}
	return w, nil
}

// Of returns what a StatefulSet that asks for w asks for its pod with number n, counted from 0. If it names addresses,
// there is one for each pod.
func (w PoolRequest) Of(n int) (PoolRequest, error) {
	var out []netip.Addr
	for _, is4 := range []bool{true, false} {
		all := slices.DeleteFunc(slices.Clone(w.PodIPs), func(a netip.Addr) bool { return a.Is4() != is4 })
		switch {
		case n < len(all):
			out = append(out, all[n])
		case len(all) > 0:
			return PoolRequest{}, fmt.Errorf("%s: annotation %s names %d IPv%d addresses, and this is pod %d of the StatefulSet: name one more, or scale the StatefulSet down", w.IPsFrom, api.AnnotationPodIPs, len(all), netaddr.Family(all[0]), n+1)
		}
	}
	w.PodIPs = out
	return w, nil
}

// ReadSet returns what a StatefulSet asks for, by the annotations of its pod template or of one of its pods. The Pod's
// annotation overrides its Namespace's, each separately: a Pod may name one address of its Namespace's pool. Addresses
// that the Namespace names do not apply to a Pod with pools of its own.
func ReadSet(pod, namespace Object) (PoolRequest, error) {
	from := namespace
	if pod.value(api.AnnotationPools) != "" {
		from = pod
	}
	ipsFrom := pod
	if pod.value(api.AnnotationPodIPs) == "" && from.Name == namespace.Name {
		ipsFrom = namespace
	}
	w := PoolRequest{From: from.Name}
	var err error
	if w.PodIPs, err = readPodIPs(ipsFrom); err != nil {
		return PoolRequest{}, err
	}
	if len(w.PodIPs) > 0 {
		w.IPsFrom = ipsFrom.Name
	}
	if from.value(api.AnnotationPools) == "" {
		return PoolRequest{}, fmt.Errorf("%s asks for %s=%q, and neither the Pod nor its Namespace names a pool: add the "+
			"annotation %s with the IPPool that the address is in", ipsFrom.Name, api.AnnotationPodIPs,
			short(ipsFrom.value(api.AnnotationPodIPs)), api.AnnotationPools)
	}
	w.Pools, err = readPools(from)
	return w, err
}

func (o Object) value(annotation string) string { return strings.TrimSpace(o.Annotations[annotation]) }

// Limits of annotations, which may have 256 KiB: each entry costs time at each ADD.
const (
	maxPools  = 100
	maxPodIPs = 5000 // those of a StatefulSet
	maxLength = 253  // of a name in Kubernetes
)

// items are the parts of a comma-separated list, at most the given number. None is empty.
func (o Object) items(annotation, example string, most int) ([]string, error) {
	value := o.value(annotation)
	if value == "" {
		return nil, nil
	}
	var out []string
	seen := map[string]bool{}
	for item := range strings.SplitSeq(value, ",") {
		switch item = strings.TrimSpace(item); {
		case item == "":
			return nil, fmt.Errorf("%s: annotation %s is %q, which has an extra comma: write it as %q",
				o.Name, annotation, short(value), example)
		case len(item) > maxLength:
			return nil, fmt.Errorf("%s: annotation %s has an entry of %d characters, and %d are the most: write it as %q",
				o.Name, annotation, len(item), maxLength, example)
		case seen[item]:
			return nil, fmt.Errorf("%s: annotation %s names %s twice: remove one", o.Name, annotation, item)
		case len(out) == most:
			return nil, fmt.Errorf("%s: annotation %s names more than %d: remove some", o.Name, annotation, most)
		}
		seen[item], out = true, append(out, item)
	}
	return out, nil
}

// short is the beginning of a value that may be of any length, for messages.
func short(value string) string {
	const most = 200
	if len(value) <= most {
		return value
	}
	return value[:most] + "…"
}

func readPools(o Object) ([]string, error) {
	return o.items(api.AnnotationPools, "pool-a,pool-b", maxPools)
}

func readPodIPs(o Object) ([]netip.Addr, error) {
	items, err := o.items(api.AnnotationPodIPs, "192.0.2.7,2001:db8::7", maxPodIPs)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, item := range items {
		a, err := netip.ParseAddr(item)
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return nil, fmt.Errorf("%s: annotation %s: %q is not an address such as 192.0.2.7 or 2001:db8::7. Write addresses only, separated by commas: mask and gateway are the pool's", o.Name, api.AnnotationPodIPs, item)
		}
		out = append(out, a)
	}
	return out, nil
}
