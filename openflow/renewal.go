package openflow

import "slices"

// renewal is the state of the flows of KindRenewal; without of there are none.
type renewal struct {
	of   func(generation int) []Flow
	last int    // generation
	has  []Flow // what the switch has, as listed, or as changed since
}

// RenewWith makes each change replace the flows of KindRenewal with those of another generation. Call it before any
// Sync.
func (s *Switch) RenewWith(of func(generation int) []Flow) { s.renewal.of = of }

// flow accepts a flow of the switch, unless it is of another kind, or none are wanted.
func (r *renewal) flow(l *listed) bool {
	ours := r.of != nil && l.flow.Kind == KindRenewal && !l.unsupported && !l.limited && l.cookie == l.flow.Cookie()
	if ours {
		r.has = append(r.has, l.flow)
	}
	return ours
}

// next returns additional changes for a bundle: the flows of another generation are added, the others deleted.
func (r *renewal) next() (todo []change) {
	before := map[Key]bool{}
	had := func(f Flow) bool { return before[f.Key()] }
	for i := range r.has {
		before[r.has[i].Key()] = true
		todo = append(todo, change{flow: &r.has[i], delete: true})
	}
	for tries := 0; r.of != nil && (tries == 0 || tries < 32 && slices.ContainsFunc(r.has, had)); tries++ {
		r.last++
		r.has = r.of(r.last)
	}
	for i := range r.has {
		todo = append(todo, change{flow: &r.has[i]})
	}
	return todo
}
