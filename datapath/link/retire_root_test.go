package link

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/nstest"
)

// A retired veth has no owner: the next Reap, of any process, removes it together with all others.
func TestRootRetireAndReap(t *testing.T) {
	node := nstest.New(t)
	hosts := func() (names []string) {
		node.Must(func() (err error) { names, err = Hosts(); return err })
		return names
	}
	var made []PodLink
	for i := range 3 {
		l := dual(nstest.New(t))
		l.HostIf = HostName(fmt.Sprint(i), "eth0")
		attach(t, node, l)
		made = append(made, l)
	}
	for _, l := range append(made[:2:2], made[0], PodLink{HostIf: HostName("unknown", "eth0")}) { // two no-ops
		node.Must(func() error { return Retire(l.HostIf) })
	}
	if got := hosts(); !slices.Equal(got, []string{made[2].HostIf}) {
		t.Errorf("in use are %v, want %s alone", got, made[2].HostIf)
	}
	for range 2 {
		node.Must(Reap)
	}
	links := node.IP("-o link show")
	for i, l := range made {
		if strings.Contains(links, l.HostIf) != (i == 2) {
			t.Errorf("after Reap there is, of %s, retired %v:\n%s", l.HostIf, i != 2, links)
		}
	}
	node.IP("link add flfoo type veth peer name x1")
	if err := node.Do(func() error { return Retire("flfoo") }); err == nil || !strings.Contains(err.Error(), "not one of Fairlead's") {
		t.Errorf("Retire of a foreign veth: %v", err)
	}
}

// The next ADD may come before the reaper: for the same attachment, or for another one of the same pod.
func TestRootAttachBeforeReap(t *testing.T) {
	node, pod := nstest.New(t), nstest.New(t)
	l := dual(pod)
	for _, id := range []string{"c1", "c1", "c2"} {
		l.HostIf = HostName(id, "eth0")
		attach(t, node, l)
		node.Must(func() error { return Check(l) })
		node.Must(func() error { return Retire(l.HostIf) })
	}
	var gone []string
	node.Must(func() (err error) { gone, err = RemoveAll(false); return err })
	if !slices.Equal(gone, []string{l.HostIf}) {
		t.Errorf("RemoveAll removed %v, want the retired one", gone)
	}
}
