package pods

import (
	"maps"
	"sync"

	"github.com/fairlead-cni/fairlead/agent/attachments"
)

// unfinished are failed ADDs whose clean-up failed, too, by host end: no attachment was reported, but it may look like
// one of a living pod. The reconciler reclaims them; after a restart of the agent that is left to the runtime's DEL.
type unfinished struct {
	mu     sync.Mutex
	byHost map[string]failedAdd
}

// failedAdd is what is needed to undo a failed ADD.
type failedAdd struct {
	attachments.Key
	network string
}

func (u *unfinished) add(host string, f failedAdd) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.byHost == nil {
		u.byHost = map[string]failedAdd{}
	}
	u.byHost[host] = f
}

func (u *unfinished) done(host string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.byHost, host)
}

func (u *unfinished) has(host string) bool {
	_, ok := u.all()[host]
	return ok
}

func (u *unfinished) all() map[string]failedAdd {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.byHost)
}
