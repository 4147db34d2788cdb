package agent

import (
	"sync"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
)

// seen are the attachments that the loop has found on record in OVSDB and not
// taken off since. The record is OVSDB's alone; this serves when somebody
// deletes it there under a running pod ("ovs-vsctl del-port", "del-br", a
// database made anew): the loop writes it again, and until it has, nobody takes
// the pod for one that is gone.
type seen struct {
	mu      sync.Mutex
	byHost  map[string]api.Attachment
	missing map[string]bool // host ends of those that were not on record last
}

// merge takes in what is on record now. It returns that and what was on record
// before, and of the latter, in lost, what no longer is: each once, however long it
// takes to write it again.
func (s *seen) merge(now []ovsdb.PodPort) (all, lost []api.Attachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, told := s.byHost, s.missing
	s.byHost, s.missing = make(map[string]api.Attachment, len(now)), map[string]bool{}
	for _, p := range now {
		s.byHost[p.HostIf] = p.Attachment
		all = append(all, p.Attachment)
	}
	for host, a := range before {
		if _, there := s.byHost[host]; !there {
			s.byHost[host], s.missing[host] = a, true
			all = append(all, a)
			if !told[host] {
				lost = append(lost, a)
			}
		}
	}
	return all, lost
}

// note is for an attachment that was just put on record.
func (s *seen) note(a api.Attachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byHost == nil {
		s.byHost = map[string]api.Attachment{}
	}
	s.byHost[a.HostIf] = a
}

// forget is for an attachment that is taken off.
func (s *seen) forget(host string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byHost, host)
}

// hosts are the host ends of all attachments.
func (s *seen) hosts() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]string, 0, len(s.byHost))
	for host := range s.byHost {
		out = append(out, host)
	}
	return out
}
