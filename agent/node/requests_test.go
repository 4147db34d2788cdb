package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-cni/fairlead/agent/attachments"
)

// A round includes an ADD whose veth is being created when the round begins, and does not wait if there is no request.
func TestGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRequests()
		r.coming.Store(1)
		if got := r.gather(nil); got != nil {
			t.Errorf("a round without requests waited and took %d", len(got))
		}
		first, second := request{}, request{Change: Change{Del: attachments.Key{ContainerID: "second", IfName: "eth0"}}}
		go func() {
			time.Sleep(gatherMost / 2) // virtual time, to create the veth
			r.queue <- second
			r.coming.Store(0)
		}()
		if got := r.gather([]request{first}); len(got) != 2 || got[1].Del != second.Del {
			t.Errorf("the round took %v, want the request that came", got)
		}
	})
}

// An ADD whose veth is slow to create does not delay the others.
func TestGatherEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, began := newRequests(), time.Now() // virtual time
		r.coming.Store(1)
		if got := r.gather([]request{{}}); len(got) != 1 || time.Since(began) != gatherMost {
			t.Errorf("after %s it took %v", time.Since(began), got)
		}
	})
}
