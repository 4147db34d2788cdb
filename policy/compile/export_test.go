package compile

// NewWithHash is New with other hashes.
func NewWithHash(hash func(string) uint32) *Compiler {
	c := New()
	c.hash = hash
	return c
}

// Held is the number of entries that c keeps besides the objects that it was given, after Changes; stale is the number
// of those that nothing needs any more.
func (c *Compiler) Held() (held, stale int) {
	held = len(c.local) + len(c.addrs) + len(c.numbers) + len(c.rules) + len(c.namespaces)
	for _, at := range c.addrs {
		if *at == (address{}) {
			stale++
		}
	}
	for _, s := range c.sides {
		held += len(s.sets) + len(s.byNamespace) + len(s.nodes) + len(s.edges.at) + len(s.edges.count) + len(s.classes) +
			len(s.numbers) + len(s.networks) + len(s.ports) + len(s.groups) + len(s.flows)
		for _, set := range s.sets {
			for class := range set.classes {
				if s.classes[class.key] != class {
					stale++
				}
			}
			if len(set.users) == 0 {
				stale++
			}
		}
		for _, class := range s.classes {
			if class.addrs == 0 {
				stale++
			}
		}
	}
	return held, stale
}

// Place is place.
var Place = place
