package ovsdb

import (
	"fmt"
	"testing"

	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// No two ports of a bridge request the same number, whatever numbers other ports have, and a freed number is not the
// next to be assigned.
func TestNumbers(t *testing.T) {
	n := numbers{0: true, 1: true, 2: true}
	given := map[int]string{}
	for i := range numberCount {
		name := fmt.Sprintf("fl%d", i)
		number := n.allocate(name)
		if given[number] != "" || number < firstNumber || number >= firstNumber+numberCount {
			t.Fatalf("%s got %d, which %q has", name, number, given[number])
		}
		given[number] = name
	}
	if number := n.allocate("flx"); number != 0 {
		t.Errorf("all are taken, and flx got %d", number)
	}
	same := 0
	for i := range 1000 {
		n := numbers{}
		if n.allocate(fmt.Sprintf("fl%d", i)) == (numbers{}).allocate(fmt.Sprintf("fl%d", i+1)) {
			same++
		}
	}
	if same > 5 {
		t.Errorf("%d of 1000 times a number was reused for the next pod", same)
	}
}

// ovs-vswitchd assigns the requested numbers, and the rows contain them.
func TestRequestedNumber(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	d := desired("a", "b")
	ensureNow(t, db, d)
	before := mustObserve(t, db)
	must(t, db.WaitOFPorts(soon(t), d.names()...))
	for i, p := range mustObserve(t, db).Pods {
		if p.Requested < firstNumber || p.OFPort != p.Requested || before.Pods[i].Requested != p.Requested {
			t.Errorf("port %s has number %d and asked for %d, at first for %d", p.HostIf, p.OFPort, p.Requested, before.Pods[i].Requested)
		}
	}
}
