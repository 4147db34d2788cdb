package openflow

import (
	"cmp"
	"fmt"
	"slices"
)

// Changes counts flows.
type Changes struct {
	Added, Modified, Deleted int
}

func (c Changes) empty() bool { return c == Changes{} }

func (c Changes) plus(d Changes) Changes {
	return Changes{c.Added + d.Added, c.Modified + d.Modified, c.Deleted + d.Deleted}
}

// confirmed is what the switch has confirmed to have.
type confirmed struct {
	flows map[Key]*knownFlow
	// unsupported are flows with a match that no flow of Fairlead's can have.
	unsupported []listed
	// diffs counts calls of diff.
	diffs uint64
}

// knownFlow is one flow on the switch. There may be tens of thousands: none is stored twice.
type knownFlow struct {
	flow *Flow
	// cookie is the flow's, or 0 until it is needed.
	cookie uint64
	// altered means that the flow differs from what is wanted in something that Flow does not show: cookie, timeouts,
	// flags.
	altered bool
	// wanted is the last call of diff that wanted the flow.
	wanted uint64
}

// newConfirmed stores a list of the switch's flows. It reuses what is unchanged from before: usually everything.
func newConfirmed(list []listed, before confirmed) confirmed {
	c := confirmed{flows: make(map[Key]*knownFlow, len(list))}
	for i := range list {
		l := &list[i]
		if l.unsupported {
			c.unsupported = append(c.unsupported, *l)
			continue
		}
		k := l.flow.Key()
		h := &knownFlow{}
		if old := before.flows[k]; old != nil && old.flow.sameAs(&l.flow) {
			h.flow, h.cookie = old.flow, old.cookie
		} else {
			flow := l.flow // a copy, so the list is not kept
			h.flow = &flow
		}
		if h.cookie == 0 {
			h.cookie = h.flow.Cookie()
		}
		h.altered = l.limited || l.cookie != h.cookie
		c.flows[k] = h
	}
	return c
}

// sameAs reports whether f, which has g's key, is the same flow.
func (f *Flow) sameAs(g *Flow) bool { return f.Kind == g.Kind && slices.Equal(f.Actions, g.Actions) }

// diff returns what turns c into want: additions and replacements in the order of want, then deletions. Flows of the
// kind keep are not deleted.
func (c *confirmed) diff(want []Flow, keep Kind) ([]change, Changes, error) {
	var todo []change
	var count Changes
	c.diffs++
	kept, added := 0, map[Key]bool{}
	for i := range want {
		f := &want[i]
		k := f.Key()
		h := c.flows[k]
		if h == nil && added[k] || h != nil && h.wanted == c.diffs {
			return nil, Changes{}, fmt.Errorf("two flows with the same match: %s", f)
		}
		if h == nil {
			added[k] = true
			count.Added++
			todo = append(todo, change{flow: f})
			continue
		}
		kept++
		h.wanted = c.diffs
		if h.altered || !h.flow.sameAs(f) {
			count.Modified++
			todo = append(todo, change{flow: f})
			continue
		}
		h.flow = f
	}
	deletions := c.unwanted(len(c.flows)-kept, keep)
	count.Deleted = len(deletions)
	return append(todo, deletions...), count, nil
}

// unwanted returns deletions of the n flows that diff did not want, except those of kind keep, and of unsupported ones.
func (c *confirmed) unwanted(n int, keep Kind) []change {
	var out []change
	if n > 0 {
		for _, h := range c.flows {
			if h.wanted != c.diffs && (h.flow.Kind != keep || h.flow.Kind == 0) {
				out = append(out, change{delete: true, flow: h.flow})
			}
		}
	}
	slices.SortFunc(out, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.flow.Table, b.flow.Table), cmp.Compare(a.flow.text(), b.flow.text()))
	})
	for i := range c.unsupported {
		l := &c.unsupported[i]
		out = append(out, change{delete: true, flow: &l.flow, rawMatch: l.rawMatch})
	}
	return out
}

// apply records that the switch has confirmed todo.
func (c *confirmed) apply(todo []change) {
	for _, t := range todo {
		switch {
		case t.rawMatch != nil: // was never in c.flows, though another with its key may be
		case t.delete:
			delete(c.flows, t.flow.Key())
		default:
			c.flows[t.flow.Key()] = &knownFlow{flow: t.flow}
		}
	}
	c.unsupported = nil
}

// foreign reports whether c removes a flow that is not Fairlead's.
func (c change) foreign() bool {
	return c.group == nil && c.delete && (c.flow.Kind == 0 || c.rawMatch != nil)
}

// text names the changed flow, as ovs-ofctl would.
func (c change) text() string {
	if c.group != nil {
		return fmt.Sprintf("group %d with %d buckets", c.group.ID, len(c.group.Buckets))
	}
	if c.rawMatch != nil {
		return fmt.Sprintf("table=%d, %s (and other matches: %x)", c.flow.Table, c.flow.text(), c.rawMatch)
	}
	return fmt.Sprintf("table=%d, %s", c.flow.Table, c.flow.text())
}

// refused returns the error of a change that the switch has rejected.
func (c change) refused(reason error) error {
	if c.group != nil {
		return fmt.Errorf("the switch rejected a %s: %w", c.text(), reason)
	}
	return &FlowError{*c.flow, reason}
}
