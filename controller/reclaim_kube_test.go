package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
)

// The cases in which an address may appear to be free. What a node's agent decides instead of the controller is tested
// in test/pools: docs/reclaim.md lists which test covers which case.
func TestKubeReclaim(t *testing.T) {
	c := newCluster(t)
	c.empty(t)
	for _, test := range []struct {
		name string
		run  func(*cluster, *stepper)
	}{
		{"node deleted", nodeDeleted}, {"pod force-deleted, node down", podForceDeleted}, {"node not ready", nodeNotReady},
		{"out of service", outOfService}, {"replaced under the same name", sameName}, {"finished", finishedPods},
		{"node made again", nodeMadeAgain}, {"watch of nodes cut", nodesCut}, {"watch of allocations cut", allocationsCut},
		{"no answer", noAnswer}, {"changed in between", changedBetween}, {"reserved", reservedStays}, {"restart", restarted},
		{"static pod", staticPod}, {"many", manyLost},
	} {
		t.Run(test.name, func(t *testing.T) {
			one := &cluster{t, c.admin, c.token, c.s, "", 0}
			t.Cleanup(func() { one.empty(t) })
			one.node("anchor") // a cluster without Nodes is a special case
			test.run(one, one.stepper())
		})
	}
}

// is checks the holders.
func (c *cluster) is(when, want string) {
	c.t.Helper()
	if got := c.holders(); got != want {
		c.t.Errorf("%s: held are %q, want %q", when, got, want)
	}
}

func nodeDeleted(c *cluster, s *stepper) {
	c.node("gone")
	c.hold("10.2.0.1", "gone", "a", c.podOn("a", "gone"))
	c.hold("10.2.0.2", "gone", "docker", nil)
	c.hold("10.2.0.3", "anchor", "lives", nil)
	c.hold("10.2.0.4", "", "of no node", nil)
	all := c.holders()
	s.look(time.Hour)
	c.deleteNode(c.t.Context(), "gone")
	s.look(time.Hour)
	s.look(grace - time.Second)
	c.is("within the grace period", all)
	s.look(time.Second)
	c.is("its Pod is there", "10.2.0.1 a, 10.2.0.3 lives, 10.2.0.4 of no node")
	c.deletePod("a")
	s.look(time.Hour)
	c.is("its Pod is gone, at one look", "10.2.0.1 a, 10.2.0.3 lives, 10.2.0.4 of no node")
	s.look(grace)
	c.is("its Pod is gone", "10.2.0.3 lives, 10.2.0.4 of no node")
	for _, want := range []string{"10.2.0.2 of IPPool p was still allocated to container docker on node gone, but its Node was deleted",
		"Warning AddressReclaimed address 10.2.0.1 of IPPool p was still allocated to container a on node gone"} {
		if got := <-s.events.Events; !strings.Contains(got, want) {
			c.t.Errorf("the Event says %q, want %q", got, want)
		}
	}
}

func podForceDeleted(c *cluster, s *stepper) {
	c.node("down")
	c.ready("down", corev1.ConditionUnknown)
	c.hold("10.2.0.1", "down", "a", c.podOn("a", "down"))
	s.look(0)
	c.deletePod("a")
	for range 3 {
		s.look(24 * time.Hour)
	}
	c.is("its node is only down", "10.2.0.1 a")
	c.deleteNode(c.t.Context(), "down")
	s.look(0)
	s.look(grace)
	c.is("its node is deleted", "")
}

func nodeNotReady(c *cluster, s *stepper) {
	c.node("far")
	c.hold("10.2.0.1", "far", "a", c.podOn("a", "far"))
	c.hold("10.2.0.2", "far", "b", nil)
	for _, is := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown} {
		c.ready("far", is)
		for range 3 {
			s.look(24 * time.Hour)
		}
		c.is("Ready is "+string(is), "10.2.0.1 a, 10.2.0.2 b")
	}
}

func outOfService(c *cluster, s *stepper) {
	c.node("off")
	c.ready("off", corev1.ConditionTrue)
	c.hold("10.2.0.1", "off", "a", c.podOn("a", "off"))
	c.deletePod("a")
	c.fence("off", true)
	for range 3 {
		s.look(grace)
	}
	c.is("tainted, and it says that it is ready", "10.2.0.1 a")
	c.ready("off", corev1.ConditionUnknown)
	s.look(time.Second)
	c.fence("off", false)
	s.look(grace)
	c.is("the taint was taken off", "10.2.0.1 a")
	c.fence("off", true)
	s.look(time.Second)
	c.is("tainted again: the first look", "10.2.0.1 a")
	s.look(grace)
	c.is("tainted and not ready", "")
}

// A Pod's name does not identify it. The new Pod has its own address, and the old one's is not kept because of it.
func sameName(c *cluster, s *stepper) {
	c.node("gone")
	c.hold("10.2.0.1", "gone", "old", c.podOn("db-0", "gone"))
	c.deleteNode(c.t.Context(), "gone")
	c.deletePod("db-0")
	s.look(0)
	c.hold("10.2.0.2", "anchor", "new", c.podOn("db-0", "anchor"))
	s.look(grace)
	c.is("while a Pod of that name runs elsewhere", "10.2.0.2 new")
	// The Node exists again, with another UID, and so does a Pod of that name.
	c.hold("10.2.0.3", "gone", "old", nil)
	c.deletePod("db-0")
	c.node("gone")
	c.hold("10.2.0.4", "gone", "newer", c.podOn("db-0", "gone"))
	s.look(grace)
	s.look(grace)
	c.is("a Node of that name is there", "10.2.0.2 new, 10.2.0.3 old, 10.2.0.4 newer")
}

func finishedPods(c *cluster, s *stepper) {
	c.node("off")
	for name, node := range map[string]string{"done": "off", "failed": "off", "here": "anchor"} {
		p := c.podOn(name, node)
		if p.Status.Phase = corev1.PodSucceeded; name == "failed" {
			p.Status.Phase = corev1.PodFailed
		}
		_, err := c.s.Admin().CoreV1().Pods("default").UpdateStatus(c.t.Context(), p, metav1.UpdateOptions{})
		must(c.t, err)
		c.hold(map[string]string{"done": "10.2.0.1", "failed": "10.2.0.2", "here": "10.2.0.3"}[name], node, name, p)
	}
	c.fence("off", true)
	s.look(0)
	s.look(grace)
	c.is("of a finished Pod its node decides, if there is one", "10.2.0.3 here")
}

func nodeMadeAgain(c *cluster, s *stepper) {
	c.node("n")
	c.hold("10.2.0.1", "n", "a", nil)
	c.deleteNode(c.t.Context(), "n")
	s.look(0)
	c.node("n")
	s.look(grace)
	c.deleteNode(c.t.Context(), "n")
	s.look(grace)
	c.is("it was there in between", "10.2.0.1 a")
	c.node("n")
	c.fence("n", true)
	s.look(grace)
	c.is("another reason", "10.2.0.1 a")
	c.deleteNode(c.t.Context(), "n")
	c.node("n")
	c.fence("n", true)
	s.look(grace)
	c.is("fenced, and it is another Node of that name", "10.2.0.1 a")
	s.look(grace)
	c.is("fenced", "")
}

func nodesCut(c *cluster, s *stepper) {
	c.node("n")
	c.hold("10.2.0.1", "n", "a", nil)
	c.deleteNode(c.t.Context(), "n")
	s.look(0)
	s.wire.set("nodes")
	c.node("n")
	for range 3 {
		s.hear("ipallocations")
		s.now += grace
		s.pass(c.t.Context())
	}
	if _, known, _ := s.world.nodes.GetByKey("n"); known {
		c.t.Fatal("the controller has heard of the Node: the test shows nothing")
	}
	c.is("the Node is there again, unheard", "10.2.0.1 a")
	s.wire.set()
	s.look(grace)
	c.is("the Node is there again, heard", "10.2.0.1 a")
	c.deleteNode(c.t.Context(), "n")
	s.look(0)
	s.look(grace)
	c.is("deleted", "")
}

func allocationsCut(c *cluster, s *stepper) {
	c.node("n")
	a := c.hold("10.2.0.1", "n", "a", nil)
	c.deleteNode(c.t.Context(), "n")
	s.look(0)
	s.wire.set("ipallocations")
	must(c.t, allocation.NewKubernetes(c.admin).Delete(c.t.Context(), a))
	c.hold("10.2.0.1", "anchor", "b", nil)
	for range 3 {
		s.hear("nodes")
		s.now += grace
		s.pass(c.t.Context())
	}
	c.is("the address is another's, unheard", "10.2.0.1 b")
}

func noAnswer(c *cluster, s *stepper) {
	c.node("n")
	c.hold("10.2.0.1", "n", "a", nil)
	c.deleteNode(c.t.Context(), "n")
	s.look(0)
	for _, part := range []string{"/nodes/", "/pods", "/ipallocations/"} {
		s.wire.interfere(func(r *http.Request) error {
			if strings.Contains(r.URL.Path, part) {
				return errors.New("no answer")
			}
			return nil
		}, nil)
		s.look(grace)
		c.is("no answer about "+part, "10.2.0.1 a")
	}
	s.wire.interfere(nil, nil)
	s.look(0)
	c.is("it answers, and nothing from before that counts", "10.2.0.1 a")
	s.look(grace)
	c.is("it answers", "")
}

func changedBetween(c *cluster, s *stepper) {
	c.node("n")
	a := c.hold("10.2.0.1", "n", "a", nil)
	c.deleteNode(c.t.Context(), "n")
	s.look(0)
	for when, is := range map[string]func(*http.Request) bool{
		"before it is read once more": func(r *http.Request) bool {
			return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/ipallocations/")
		},
		"after everything has been read": func(r *http.Request) bool {
			return r.Method == http.MethodDelete || r.Method == http.MethodPut
		},
	} {
		s.wire.interfere(func(r *http.Request) (err error) {
			if is(r) {
				a.Spec.Owner.PodUID += "another"
				a, err = allocation.NewKubernetes(c.admin).Update(c.t.Context(), a)
			}
			return err
		}, nil)
		s.look(grace)
		s.wire.interfere(nil, nil)
		c.is("changed "+when, "10.2.0.1 a")
		s.look(time.Second)
		c.is("the first look at what it is now", "10.2.0.1 a")
	}
	s.look(grace)
	c.is("the second", "")
}

func reservedStays(c *cluster, s *stepper) {
	c.node("n")
	a := c.hold("10.2.0.1", "n", "a", nil)
	a.Spec.Reservation = &api.AllocationReservation{Kind: "StatefulSet", Namespace: "default", Name: "db", UID: "u", Ordinal: 1}
	_, err := allocation.NewKubernetes(c.admin).Update(c.t.Context(), a)
	must(c.t, err)
	c.hold("10.2.0.2", "n", "b", nil)
	s.cfg.CoolingPeriod = time.Hour
	c.deleteNode(c.t.Context(), "n")
	s.look(0)
	s.look(grace)
	s.look(grace)
	all := c.all()
	if len(all) != 2 || all[0].Spec.Phase != api.PhaseReserved || all[0].Spec.Owner.ContainerID != "" ||
		all[1].Spec.Phase != api.PhaseCooling || time.Until(all[1].Spec.Until.Time) < 50*time.Minute {
		c.t.Errorf("want one Reserved and one Cooling: %+v", all)
	}
}

// One controller's observations do not count for another one.
func restarted(c *cluster, s *stepper) {
	c.node("n")
	c.hold("10.2.0.1", "n", "a", nil)
	c.deleteNode(c.t.Context(), "n")
	s.look(0)
	s.begin() // the leader again
	s.look(grace)
	next := c.stepper()
	next.look(time.Hour)
	c.is("no check was made twice", "10.2.0.1 a")
	next.look(grace)
	c.is("the next one has", "")
}

// Kubelets give static pods their own UID; the API server has mirror Pods.
func staticPod(c *cluster, s *stepper) {
	c.node("off")
	mirror := c.podOn("static", "off")
	mirror.Annotations = map[string]string{"kubernetes.io/config.hash": "hash"}
	_, err := c.s.Admin().CoreV1().Pods("default").Update(c.t.Context(), mirror, metav1.UpdateOptions{})
	must(c.t, err)
	mirror.UID = "hash"
	c.hold("10.2.0.1", "off", "static", mirror)
	c.fence("off", true)
	s.look(0)
	s.look(grace)
	c.is("its mirror is there", "10.2.0.1 static")
	c.deletePod("static")
	s.look(0)
	s.look(grace)
	c.is("its mirror is gone", "")
}

// Many lost nodes are handled in turn, and the work of one pass is bounded.
func manyLost(c *cluster, s *stepper) {
	for n := range nodesInPass + 5 {
		for i := range 4 {
			c.hold(fmt.Sprintf("10.3.%d.%d", n, i+1), fmt.Sprint("n", n), "x", nil)
		}
	}
	s.look(0)
	requests := 0
	s.wire.interfere(func(*http.Request) error { requests++; return nil }, nil)
	left := len(c.all())
	for pass := 1; left > 0; pass++ {
		requests = 0
		s.look(grace)
		now := len(c.all())
		if most := 2*nodesInPass + 2*freesInPass; left-now > freesInPass || requests > most || pass > 9 {
			c.t.Fatalf("pass %d freed %d in %d requests, %d are left", pass, left-now, requests, now)
		}
		left = now
	}
}

// A whole controller, with its own clock and the shipped RBAC rules, reports what it reclaims.
func TestKubeReclaimRuns(t *testing.T) {
	c := newCluster(t)
	c.empty(t)
	t.Cleanup(func() { c.empty(t) })
	ctx, cancel := context.WithCancel(t.Context())
	url, done := c.startWith(ctx, api.ControllerConfig{Reclaim: api.Reclaim{Enabled: true, GracePeriod: time.Second}}, nil)
	defer func() { cancel(); must(t, <-done) }()
	c.node("anchor")
	gone := c.node("gone")
	p := c.podOn("a", "gone")
	c.hold("10.2.0.1", "gone", "a", p)
	c.hold("10.2.0.2", "gone", "b", nil)
	c.hold("10.2.0.3", "anchor", "c", nil)
	c.metric(url, `fairlead_lost_node_addresses{reason="pod"} 0`)
	c.deleteNode(t.Context(), gone.Name)
	c.waits(func() string {
		if got := c.holders(); got != "10.2.0.1 a, 10.2.0.3 c" {
			return got
		}
		return ""
	})
	c.metric(url, `fairlead_lost_node_addresses{reason="pod"} 1`)
	c.deletePod("a")
	c.metric(url, `fairlead_addresses_reclaimed_total{reason="deleted"} 2`)
	c.is("at the end", "10.2.0.3 c")
	c.waits(func() string {
		list, err := c.s.Admin().CoreV1().Events("default").List(t.Context(), metav1.ListOptions{
			FieldSelector: "reason=" + api.EventAddressReclaimed})
		must(t, err)
		about := ""
		for _, e := range list.Items {
			about += " " + e.InvolvedObject.Kind + " " + e.InvolvedObject.Name + " " + string(e.InvolvedObject.UID)
		}
		if !strings.Contains(about, "Pod a "+string(p.UID)) || !strings.Contains(about, "IPPool p") {
			return "Events are about" + about
		}
		return ""
	})
}
