package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// gatherMost is how long a round waits for ADDs whose veths are being created.
const gatherMost = 50 * time.Millisecond

// Change asks the loop to put an attachment on the node (Add) or to release one (Del).
type Change struct {
	Add *api.Attachment
	// Restores: the pod of Add is running already, and its record is restored.
	Restores bool
	Del      attachments.Key
}

// request is a Change with a channel for its caller: done receives the outcome, once.
type request struct {
	Change
	done chan error
}

// requests are those that wait for the next round.
type requests struct {
	queue chan request
	// coming counts ADDs whose veths are being created.
	coming *atomic.Int32
}

func newRequests() requests { return requests{make(chan request), new(atomic.Int32)} }

// Apply hands a change to the loop and waits for the answer: nil when pods' traffic flows as it says.
func (n *Node) Apply(ctx context.Context, c Change) error {
	r := request{c, make(chan error, 1)}
	select {
	case n.requests.queue <- r:
	case <-ctx.Done():
		return fmt.Errorf("the node was not ready to take the request: %w", ctx.Err())
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the node did not finish the request: %w", ctx.Err())
	}
}

// ExpectAdd says that a Change to add a pod will come within moments. done ends that.
func (n *Node) ExpectAdd() (done func()) {
	n.requests.coming.Add(1)
	return func() { n.requests.coming.Add(-1) }
}

// gather adds to have all requests that wait to be sent and, if there are any, those that will be sent within moments.
// The cost of a round, here and in ovs-vswitchd, depends on the number of existing pods, hardly on that of new ones.
func (r requests) gather(have []request) []request {
	have = r.drain(have)
	last := time.After(gatherMost)
	for len(have) > 0 && r.coming.Load() > 0 {
		select {
		case one := <-r.queue:
			have = append(have, one)
		case <-last:
			return have
		}
	}
	return r.drain(have)
}

func (r requests) drain(have []request) []request {
	for {
		select {
		case one := <-r.queue:
			have = append(have, one)
		default:
			return have
		}
	}
}

// refuse answers those requests for which why has a reason, and returns the others.
func refuse(waiting []request, why func(request) error) []request {
	return slices.DeleteFunc(waiting, func(r request) bool {
		err := why(r)
		if err != nil {
			r.done <- err
		}
		return err != nil
	})
}

// refuseOutdated refuses the ADDs that took an address before the Node changed: that address is no longer routed to
// this node. conflict says why the podCIDR can't be used, nil if it can.
func refuseOutdated(waiting []request, own inputs.Node, conflict error) []request {
	return refuse(waiting, func(r request) error {
		switch {
		case r.Add == nil || r.Restores || r.Add.Bridged:
			return nil
		case conflict != nil:
			return conflict
		case desired.OutsidePodCIDRs(own, []api.Attachment{*r.Add}) != nil:
			return fmt.Errorf("the podCIDRs of node %s changed to %v while the pod's address was allocated", own.Name, own.PodCIDRs)
		}
		return nil
	})
}

// refuseEarly refuses the ADDs that come before policies are known: the pods would be open.
func refuseEarly(waiting []request, err error) []request {
	return refuse(waiting, func(r request) error {
		if r.Add != nil && !r.Restores {
			return err
		}
		return nil
	})
}

// refuseBridged refuses the ADDs of bridged pods.
func refuseBridged(waiting []request, err error) []request {
	return refuse(waiting, func(r request) error {
		if r.Add != nil && r.Add.Bridged {
			return err
		}
		return nil
	})
}

// ports are the ports that the requests add and release.
func ports(waiting []request) (added, removed []string) {
	for _, r := range waiting {
		if r.Add != nil {
			added = append(added, r.Add.HostIf)
		} else {
			removed = append(removed, r.Del.Host())
		}
	}
	return added, removed
}

// withRequests is what is attached now, with the waiting requests carried out.
func withRequests(now []api.Attachment, waiting []request) []api.Attachment {
	byKey := map[attachments.Key]api.Attachment{}
	for _, a := range now {
		byKey[attachments.KeyOf(a)] = a
	}
	for _, r := range waiting {
		if r.Add != nil {
			byKey[attachments.KeyOf(*r.Add)] = *r.Add
		} else {
			delete(byKey, r.Del)
		}
	}
	out := make([]api.Attachment, 0, len(byKey))
	for _, a := range byKey {
		out = append(out, a)
	}
	return out
}

// answer reports the outcome to each request: podErr is why the part of the round that pods depend on failed. If a port
// got no number, only its pod's request fails.
func (n *Node) answer(waiting []request, obs ovsdb.Observed, podErr error) {
	ports := map[string]ovsdb.PodPort{}
	for _, p := range obs.Pods {
		ports[p.HostIf] = p
	}
	for _, r := range waiting {
		err := podErr
		if err == nil && r.Add != nil && ports[r.Add.HostIf].OFPort == 0 {
			err = fmt.Errorf("port %s has no OpenFlow port number: %s", r.Add.HostIf,
				cmp.Or(ports[r.Add.HostIf].Error, "ovs-vswitchd reported no error and may be hung"))
		}
		if err == nil && r.Add != nil {
			n.Recorded.Add(*r.Add)
		}
		r.done <- err
	}
}
