package peers

import (
	"cmp"
	"maps"
	"slices"

	"github.com/fairlead-cni/fairlead/kube/feed"
)

// divide returns the part of the batch that is passed on now, and the part that waits for Pods that rules deny or pass.
// If it suffices that new Pods of this node wait, which are closed until then, nothing else waits. p.mu is held.
func (p *Peers) divide(wanted needed) (now, later map[feed.Key]any) {
	unread := p.unread(wanted)
	if len(unread) == 0 {
		p.waiting.late = false
		return p.waiting.changed, map[feed.Key]any{}
	}
	later = p.closed()
	now, rest := maps.Clone(p.waiting.changed), maps.Clone(p.known)
	for key := range later {
		delete(now, key)
		delete(rest, key)
	}
	if len(p.unread(neededBy(rest))) > 0 {
		now, later = map[feed.Key]any{}, p.waiting.changed
	}
	if !p.waiting.late {
		p.log.Info("new pods stay closed, or policy changes wait, until the pods of other nodes that rules deny or pass are read",
			"changes", len(later), "namespaces", len(unread), "first", cmp.Or(unread[0], "*"))
	}
	p.waiting.late = true
	return now, later
}

// closed are the new Pods of this node in the batch to which rules apply that deny or pass Pods that have not been
// read. p.mu is held.
func (p *Peers) closed() map[feed.Key]any {
	out, alone := map[feed.Key]any{}, maps.Clone(p.known)
	maps.DeleteFunc(alone, func(key feed.Key, _ any) bool { return key.Kind == feed.Pod })
	for key, v := range p.waiting.changed {
		if key.Kind != feed.Pod || v == nil || p.local[key.Name] != nil {
			continue
		}
		alone[key] = v
		if len(p.unread(neededBy(alone))) > 0 {
			out[key] = v
		}
		delete(alone, key)
	}
	return out
}

// unread are the namespaces, sorted, whose Pods rules deny or pass and that no reader has read yet. p.mu is held.
func (p *Peers) unread(n needed) (out []string) {
	for namespace := range n.strict {
		own, all := p.readers[namespace], p.readers[everywhere]
		if (own == nil || !own.pods.Read()) && (all == nil || !all.pods.Read()) {
			out = append(out, namespace)
		}
	}
	slices.Sort(out)
	return out
}
