package chain

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead-cni/fairlead/test/crash/nodestate"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// A node without free addresses reports how many are in use, and works again when some are free.
func TestRootAddressesUsedUp(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	_, r := up(t)
	var containers []*libcni.RuntimeConf
	var pods []nodestate.Pod
	for range 5 {
		p := r.container(t)
		containers, pods = append(containers, p), append(pods, asPod(t, p, r.mustAdd(t, alone("1.1.0"), p)))
	}
	for range 3 {
		p := r.container(t)
		_, err := r.add(alone("1.1.0"), p)
		if err == nil || !strings.Contains(err.Error(), "podCIDR 10.77.2.0/29 is full: 5 of 5 addresses in use") {
			t.Errorf("the sixth ADD: %v", err)
		}
		if left := r.in(t, p, "ip -o link"); strings.Contains(left, "eth0") {
			t.Errorf("in the container: %s", left)
		}
		r.has(t, pods...)
		r.mustDel(t, alone("1.1.0"), p)
		r.end(t, p)
	}
	r.has(t, pods...)
	for _, p := range containers[:2] {
		r.mustDel(t, alone("1.1.0"), p)
		again := r.container(t)
		pods = append(pods[1:], asPod(t, again, r.mustAdd(t, alone("1.1.0"), again)))
		r.has(t, pods...)
	}
}

// An interface that already exists is not changed.
func TestRootInterfaceIsThere(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	r, _ := up(t)
	p := r.container(t)
	r.in(t, p, "ip link add eth0 type veth peer name other")
	_, err := r.add(alone("1.1.0"), p)
	if err == nil || !strings.Contains(err.Error(), "the pod already has an interface eth0, which Fairlead did not create") {
		t.Errorf("ADD: %v", err)
	}
	r.has(t)
	r.mustDel(t, alone("1.1.0"), p)
	if out := r.in(t, p, "ip -d link show dev eth0"); !strings.Contains(out, "eth0@other") {
		t.Errorf("eth0 is now %s", out)
	}
}

// As many pods as a node has addresses at once, through the whole chain.
func TestRootManyAtOnce(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	r, _ := up(t)
	const many = 32
	containers := make([]*libcni.RuntimeConf, many)
	pods := make([]nodestate.Pod, many)
	for i := range containers {
		containers[i] = r.container(t)
		containers[i].ContainerID += fmt.Sprint("-", i)
	}
	var adds, dels errgroup.Group
	for i, p := range containers {
		adds.Go(func() error {
			result, err := r.add(network("1.0.0", "chain", portmap, tuning), p)
			if err == nil {
				pods[i] = asPod(t, p, result)
			}
			return err
		})
	}
	must(t, adds.Wait())
	r.has(t, pods...)
	var addrs []string
	for _, p := range pods {
		for _, ip := range p.IPs {
			addrs = append(addrs, ip.String())
		}
	}
	if slices.Sort(addrs); len(slices.Compact(addrs)) != 2*many {
		t.Errorf("an address twice: %v", addrs)
	}
	for _, p := range containers {
		dels.Go(func() error { return r.del(network("1.0.0", "chain", portmap, tuning), p) })
	}
	must(t, dels.Wait())
	r.has(t)
}
