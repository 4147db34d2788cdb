package ovsdb

import (
	"fmt"
	"testing"

	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// An agent reads OVSDB a dozen times for each new pod. It decodes a record once, and still sees external changes.
func TestReplica(t *testing.T) {
	const pods = 100
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	var names []string
	for i := range pods {
		names = append(names, fmt.Sprint(i))
	}
	d := desired(names...)
	ensureNow(t, db, d)
	must(t, db.WaitOFPorts(soon(t), d.names()...))

	least := func(f func()) float64 { // the minimum: ovs-vswitchd's updates meanwhile are counted, too
		return min(testing.AllocsPerRun(3, f), testing.AllocsPerRun(3, f), testing.AllocsPerRun(3, f))
	}
	plain, differs := least(func() { mustObserve(t, db) }), least(func() { db.differs(t, d) })
	t.Logf("%d pods: %.0f allocations to look, %.0f to compare", pods, plain, differs)
	if plain > pods || differs > 4*pods {
		t.Errorf("%.0f allocations to look at %d pods and %.0f to compare them: their records are read each time",
			plain, pods, differs)
	}

	pod := mustObserve(t, db).Pods[0]
	o.Ctl("set", "Port", pod.HostIf, "external_ids:fairlead-pod-name=other")
	waitChanged(t, db, func() bool { return mustObserve(t, db).Pods[0].PodName == "other" }, "the external change is seen")
	if !db.differs(t, d) {
		t.Error("an externally changed record counts as the desired one")
	}
	o.Ctl("set", "Port", pod.HostIf, "external_ids:fairlead-pod-name="+pod.PodName, "external_ids:fairlead-stray=1")
	waitChanged(t, db, func() bool { return mustObserve(t, db).Pods[0].PodName == pod.PodName }, "the name is back")
	if !db.differs(t, d) {
		t.Error("a record with an extra key counts as wanted")
	}
	ensureNow(t, db, d)
	if db.differs(t, d) {
		t.Error("after Ensure the database differs still")
	}
}
