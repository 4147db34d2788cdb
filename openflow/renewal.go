package openflow

import "slices"

// renewal are the flows of KindRenewal; without of there are none.
type renewal struct {
	of   func(generation int) []Flow
	last int    // generation
	has  []Flow // the switch, as it was listed, or told since
}

// RenewWith has each change replace the flows of KindRenewal by those of another generation. It precedes any Sync.
func (s *Switch) RenewWith(of func(generation int) []Flow) { s.renewal.of = of }

// flow takes a flow that the switch has, unless it is none of these, or there shall be none.
func (r *renewal) flow(l *listed) bool {
	ours := r.of != nil && l.flow.Kind == KindRenewal && !l.unsupported && !l.limited && l.cookie == l.flow.Cookie()
	if ours {
		r.has = append(r.has, l.flow)
	}
	return ours
}

// next is what a bundle does besides: the flows of another generation come, the others go.
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
