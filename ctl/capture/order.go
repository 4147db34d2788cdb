package capture

import (
	"container/heap"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/capture"
)

// packet is a frame, and the number of its interface in the file.
type packet struct {
	capture.Frame
	at int
}

// A packet is held back for earlier ones from other interfaces and nodes for reorderWait after its arrival, or until
// more than maxHeldBytes are held.
const (
	reorderWait  = time.Second
	maxHeldBytes = 64 << 20
)

// order sorts packets of several sources by time; each source's own are in order. A packet that arrives later than
// reorderWait allows comes after later ones.
type order struct {
	held     queue
	arrivals []*held
	bytes    int
	count    int
}

// held is a packet that waits.
type held struct {
	packet
	arrived time.Time
	number  int // of packets with the same time the first arrival goes first
	gone    bool
}

func (o *order) add(p packet, now time.Time) {
	h := &held{packet: p, arrived: now, number: o.count}
	o.count++
	o.bytes += len(p.Data)
	heap.Push(&o.held, h)
	o.arrivals = append(o.arrivals, h)
}

// next returns the earliest held packet, if one has waited long enough.
func (o *order) next(now time.Time) (packet, bool) {
	for len(o.arrivals) > 0 && o.arrivals[0].gone {
		o.arrivals = o.arrivals[1:]
	}
	if len(o.arrivals) == 0 || now.Sub(o.arrivals[0].arrived) < reorderWait && o.bytes <= maxHeldBytes {
		return packet{}, false
	}
	return o.take(), true
}

// rest returns the held packets one by one, once no more will come.
func (o *order) rest() (packet, bool) {
	if len(o.held) == 0 {
		return packet{}, false
	}
	return o.take(), true
}

func (o *order) take() packet {
	h := heap.Pop(&o.held).(*held)
	h.gone = true
	o.bytes -= len(h.Data)
	return h.packet
}

// queue implements heap.Interface.
type queue []*held

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	if q[i].Time.Equal(q[j].Time) {
		return q[i].number < q[j].number
	}
	return q[i].Time.Before(q[j].Time)
}

func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push appends.
func (q *queue) Push(x any) { *q = append(*q, x.(*held)) }

// Pop removes the last.
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	(*q)[len(*q)-1] = nil
	*q = (*q)[:len(*q)-1]
	return last
}
