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

func (c Changes) none() bool { return c == Changes{} }

// confirmed is what the switch is known to have.
type confirmed struct {
	flows map[key]have
	// strange are flows whose match no flow of ours can have.
	strange []listed
}

// have is one flow on the switch.
type have struct {
	flow Flow
	// altered tells that the flow differs from what it should be in something
	// that Flow does not show: cookie, timeouts, flags.
	altered bool
}

// newConfirmed takes stock of a list of the switch's flows.
func newConfirmed(list []listed) confirmed {
	c := confirmed{flows: make(map[key]have, len(list))}
	for _, l := range list {
		if l.strange {
			c.strange = append(c.strange, l)
			continue
		}
		c.flows[l.flow.key()] = have{l.flow, l.limited || l.cookie != l.flow.Cookie()}
	}
	return c
}

// diff returns what turns c into want: what is added or replaced in the order
// of want, then what is deleted.
func (c confirmed) diff(want []Flow) ([]change, Changes, error) {
	var todo []change
	var count Changes
	wanted := make(map[key]struct{}, len(want))
	for _, f := range want {
		k := f.key()
		if _, double := wanted[k]; double {
			return nil, Changes{}, fmt.Errorf("two flows with one match: %s", f)
		}
		wanted[k] = struct{}{}
		switch h, ok := c.flows[k]; {
		case !ok:
			count.Added++
		case h.altered || h.flow.Kind != f.Kind || !slices.Equal(h.flow.Actions, f.Actions):
			count.Modified++
		default:
			continue
		}
		todo = append(todo, change{flow: f})
	}
	deletions := c.unwanted(wanted)
	count.Deleted = len(deletions)
	return append(todo, deletions...), count, nil
}

func (c confirmed) unwanted(wanted map[key]struct{}) []change {
	var out []change
	for k, h := range c.flows {
		if _, ok := wanted[k]; !ok {
			out = append(out, change{delete: true, flow: h.flow})
		}
	}
	slices.SortFunc(out, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.flow.Table, b.flow.Table), cmp.Compare(a.flow.text(), b.flow.text()))
	})
	for _, l := range c.strange {
		out = append(out, change{delete: true, flow: l.flow, rawMatch: l.rawMatch})
	}
	return out
}

// apply records that the switch has confirmed todo.
func (c *confirmed) apply(todo []change) {
	for _, t := range todo {
		switch {
		case t.rawMatch != nil: // was never in c.flows, though another with its key may be
		case t.delete:
			delete(c.flows, t.flow.key())
		default:
			c.flows[t.flow.key()] = have{flow: t.flow}
		}
	}
	c.strange = nil
}

// foreign reports whether c removes a flow that is not from Pipeline.
func (c change) foreign() bool { return c.delete && (c.flow.Kind == 0 || c.rawMatch != nil) }

// text names the flow that is changed, as ovs-ofctl would.
func (c change) text() string {
	if c.rawMatch != nil {
		return fmt.Sprintf("table=%d, %s (and other matches: %x)", c.flow.Table, c.flow.text(), c.rawMatch)
	}
	return fmt.Sprintf("table=%d, %s", c.flow.Table, c.flow.text())
}
