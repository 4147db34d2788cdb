package ovsdb

import "hash/fnv"

// Pod ports have OpenFlow port numbers from firstNumber on, numberCount of them: below are the ports that every node
// has, above those that OpenFlow 1.0 reserves (OFPP_MAX, 0xff00).
const firstNumber, numberCount = 256, 64000

// numbers are OpenFlow port numbers in use or requested.
type numbers map[int]bool

func numbersOf(ports map[string]portIface) numbers {
	out := numbers{}
	for _, p := range ports {
		out[int(p.iface.number())], out[int(p.iface.requested())] = true, true
	}
	return out
}

// allocate returns a free number for a new port. It depends on the name, so a number just freed is hardly ever reused
// next: a frame in flight would match another pod's flows. 0, if none is free, leaves the choice to ovs-vswitchd.
func (n numbers) allocate(name string) int {
	h := fnv.New32a()
	h.Write([]byte(name))
	for i := range numberCount {
		if number := firstNumber + (int(h.Sum32()%numberCount)+i)%numberCount; !n[number] {
			n[number] = true
			return number
		}
	}
	return 0
}
