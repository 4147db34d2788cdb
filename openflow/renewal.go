package openflow

// renewal are the flows of KindRenewal, of which each bundle has others than the one before.
type renewal struct {
	of         func(generation int) []Flow // nil: none
	generation int
	has        []Flow // the switch, as it was listed, or told since
}

// RenewWith has each change replace the flows of KindRenewal: all of a generation, by those of one that has no flow in
// common with it. Without it there are none. It is called before the first Sync.
func (s *Switch) RenewWith(of func(generation int) []Flow) { s.renewal.of = of }

// flow takes a flow that the switch has, unless it is none of these, or there shall be none.
func (r *renewal) flow(l *listed) bool {
	if r.of == nil || l.flow.Kind != KindRenewal || l.unsupported {
		return false
	}
	r.has = append(r.has, l.flow)
	return true
}

// next is what a bundle does besides: the flows of another generation come, the others go.
func (r *renewal) next() (todo []change) {
	before := map[Key]bool{}
	for i := range r.has {
		before[r.has[i].Key()] = true
		todo = append(todo, change{flow: &r.has[i], delete: true})
	}
	for r.has = nil; r.of != nil && (r.has == nil || before[r.has[0].Key()]); r.generation++ {
		r.has = r.of(r.generation)
	}
	for i := range r.has {
		todo = append(todo, change{flow: &r.has[i]})
	}
	return todo
}
