package selection

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
)

// annotationLimit is what Kubernetes allows for all annotations of an object.
const annotationLimit = 256 << 10

// listOf is a list as long as an annotation may be, of parts that are all different.
func listOf(part func(i int) string) string {
	var b strings.Builder
	for i := 0; b.Len() < annotationLimit-60; i++ {
		fmt.Fprintf(&b, "%s,", part(i))
	}
	return strings.TrimSuffix(b.String(), ",")
}

// Whatever fits into an annotation: the error is short and names the limit, and no more entries than the limit are
// read.
func TestLongAnnotations(t *testing.T) {
	name := func(i int) string { return fmt.Sprintf("%x", i) }
	addr := func(i int) string { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String() }
	for _, c := range []struct{ what, pools, ips, want string }{
		{"pools", listOf(name), "", "annotation ipam.antrea.io/ippools names more than 100"},
		{"addresses", "a", listOf(addr), "annotation ipam.antrea.io/pod-ips names more than 5000"},
		{"one name", strings.Repeat("x", annotationLimit), "", "has an entry of 262144 characters"},
		{"one address", "a", strings.Repeat("1", annotationLimit), "has an entry of 262144 characters"},
		{"one twice", strings.Repeat("a,", annotationLimit/2), "", "names a twice"},
		{"commas", strings.Repeat(",", annotationLimit), "", "which has an extra comma"},
		{"no pool", "", "10.0.0.1" + strings.Repeat(" ", annotationLimit/2) + ",10.0.0.2", "neither the Pod nor its Namespace names a pool"},
	} {
		pod, namespace := pods(c.pools, c.ips, "", "")
		_, err := ReadSet(pod, namespace)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %.300v, want %q", c.what, err, c.want)
		} else if n := len(err.Error()); n > 1000 {
			t.Errorf("%s: a message of %d bytes", c.what, n)
		}
	}
	pod := Object{Name: "Pod default/p", Annotations: map[string]string{api.AnnotationSticky: strings.Repeat("x", annotationLimit)}}
	if _, err := pod.Sticky(); err == nil || len(err.Error()) > 1000 {
		t.Errorf("sticky: %.300v", err)
	}
}
