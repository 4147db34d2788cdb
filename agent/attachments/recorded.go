package attachments

import (
	"sync"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
)

// Recorded are the attachments that were found on record in OVSDB and not released since. OVSDB alone has the record;
// this copy is used when the record of a running pod is deleted ("ovs-vsctl del-port", "del-br", a recreated database):
// it is restored, and until then the pod does not count as gone. The zero value is ready to use.
type Recorded struct {
	mu      sync.Mutex
	byHost  map[string]api.Attachment
	missing map[string]bool // host ends of those that had no record at the last Merge
}

// Merge takes the current records. It returns these together with earlier ones and, in lost, the earlier ones whose
// record is gone: each once, however long it takes to write it again.
func (s *Recorded) Merge(now []ovsdb.PodPort) (all, lost []api.Attachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, reported := s.byHost, s.missing
	s.byHost, s.missing = make(map[string]api.Attachment, len(now)), map[string]bool{}
	for _, p := range now {
		s.byHost[p.HostIf] = p.Attachment
		all = append(all, p.Attachment)
	}
	for host, a := range before {
		if _, there := s.byHost[host]; !there {
			s.byHost[host], s.missing[host] = a, true
			all = append(all, a)
			if !reported[host] {
				lost = append(lost, a)
			}
		}
	}
	return all, lost
}

// Add adds an attachment that was just recorded.
func (s *Recorded) Add(a api.Attachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byHost == nil {
		s.byHost = map[string]api.Attachment{}
	}
	s.byHost[a.HostIf] = a
}

// Forget removes an attachment that is released, by the name of its host end.
func (s *Recorded) Forget(host string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byHost, host)
}

// hosts are the host ends of all attachments.
func (s *Recorded) hosts() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]string, 0, len(s.byHost))
	for host := range s.byHost {
		out = append(out, host)
	}
	return out
}
