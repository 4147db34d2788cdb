package selection

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
)

func TestKeep(t *testing.T) {
	set := Controller{"apps/v1", "StatefulSet", "db", "s1"}
	replicas := Controller{"apps/v1", "ReplicaSet", "web-5d4", "r1"}
	deployment := Controller{"apps/v1", "Deployment", "web", "d1"}
	vmi, vm := Controller{"kubevirt.io/v1", "VirtualMachineInstance", "vm", "i1"}, Controller{"kubevirt.io/v1", "VirtualMachine", "vm", "v1"}
	for _, c := range []struct {
		name, pod, index, sticky string
		of, top                  Controller
		want                     string // the reservation, or part of the error
	}{
		{"plain", "p", "", "", Controller{}, Controller{}, "<nil>"},
		{"set, by label", "db-7", "7", "", set, set, "StatefulSet db s1 7 "},
		{"set, by name", "db-12", "", "", set, set, "StatefulSet db s1 12 "},
		{"the label counts", "db-12", "3", "", set, set, "StatefulSet db s1 3 "},
		{"a name like a set's", "other-3", "", "", set, set, "<nil>"},
		{"no number", "db-x", "", "address", set, set, "its successor cannot be identified"},
		{"negative", "db--1", "", "", set, set, "<nil>"},
		{"set of another group", "db-1", "1", "", Controller{"apps.kruise.io/v1", "StatefulSet", "db", "k"}, set, "<nil>"},
		{"set with MAC", "db-1", "1", "mac", set, set, "StatefulSet db s1 1 02:00:00:00:00:0a"},
		{"deployment not asked for", "web-5d4-x", "", "", replicas, replicas, "<nil>"},
		{"deployment", "web-5d4-x", "", "address", replicas, deployment, "Deployment web d1 0 "},
		{"replicas alone", "web-5d4-x", "", " address ", replicas, replicas, "ReplicaSet web-5d4 r1 0 "},
		{"vm", "virt-launcher-vm-x", "", "mac", vmi, vm, "VirtualMachine vm v1 0 02:00:00:00:00:0a"},
		{"vmi", "virt-launcher-vm-x", "", "address", vmi, vmi, "VirtualMachineInstance vm i1 0 "},
		{"job", "j-x", "", "address", Controller{"batch/v1", "Job", "j", "j1"}, Controller{"batch/v1", "Job", "j", "j1"},
			"annotation ipam.fairlead.dev/sticky: its owner is Job j, so its successor cannot be identified"},
		{"manual", "p", "", "mac", Controller{}, Controller{}, "its owner is no controller"},
		{"misspelt", "db-1", "1", "MAC", set, set, `annotation ipam.fairlead.dev/sticky is "MAC": write address, which keeps`},
	} {
		m := Member{Object: Object{"Pod default/" + c.pod, map[string]string{api.AnnotationSticky: c.sticky}}, Namespace: "default",
			Pod: c.pod, Index: c.index, Controller: c.of}
		r, err := m.Keep(c.top, func(seed string) api.MAC {
			if want := fmt.Sprintf("sticky %s ", c.top.UID); !strings.HasPrefix(seed, want) {
				t.Errorf("%s: a MAC of %q, want one of the object that lasts", c.name, seed)
			}
			return api.MAC{2, 0, 0, 0, 0, 10}
		})
		got := "<nil>"
		if err != nil {
			got = err.Error()
		} else if r != nil {
			got = fmt.Sprintf("%s %s %s %d %s", r.Kind, r.Name, r.UID, r.Ordinal, r.MAC)
		}
		if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Addresses that a StatefulSet names go to its pods in order, in each family.
func TestNamedOfSet(t *testing.T) {
	for _, c := range []struct {
		ips  string
		n    int
		want string
	}{
		{"10.4.0.9", 0, "[10.4.0.9]"},
		{"10.4.0.9,10.4.0.12, 10.4.0.7", 1, "[10.4.0.12]"},
		{"10.4.0.9,2001:db8:6::9,10.4.0.12,2001:db8:6::12", 1, "[10.4.0.12 2001:db8:6::12]"},
		{"10.4.0.9", 1, "annotation ipam.antrea.io/pod-ips names 1 IPv4 addresses, and this is pod 2 of the StatefulSet: name one more, or"},
		{"10.4.0.9,10.4.0.8,2001:db8:6::9", 1, "names 1 IPv6 addresses, and this is pod 2"},
		{"", 5, "[]"},
		{"10.4.0.9,10.4.0.9", 0, "names 10.4.0.9 twice"},
	} {
		pod, ns := pods("four,six", c.ips, "", "")
		w, err := ReadSet(pod, ns)
		if err == nil {
			w, err = w.Of(c.n)
		}
		got := fmt.Sprint(w.PodIPs)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%q, pod %d: %s, want %s", c.ips, c.n, got, c.want)
		}
	}
}
