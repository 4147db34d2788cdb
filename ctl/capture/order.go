package capture

import (
	"container/heap"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/capture"
)

// packet is a frame and the number of the interface in the file.
type packet struct {
	capture.Frame
	at int
}

// A packet waits for earlier ones of other interfaces and nodes for so long after its arrival, unless so many bytes
// wait.
const (
	patience     = time.Second
	maxHeldBytes = 64 << 20
)

// order puts packets of several sources, each of which has its own in order, into the order of time. One that comes
// later than patience allows is behind later ones.
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
	number  int // of packets with one time the first goes first
	gone    bool
}

func (o *order) add(p packet, now time.Time) {
	h := &held{packet: p, arrived: now, number: o.count}
	o.count++
	o.bytes += len(p.Data)
	heap.Push(&o.held, h)
	o.arrivals = append(o.arrivals, h)
}

// next returns a packet that has no more to wait for. It is the earliest of those that wait.
func (o *order) next(now time.Time) (packet, bool) {
	for len(o.arrivals) > 0 && o.arrivals[0].gone {
		o.arrivals = o.arrivals[1:]
	}
	if len(o.arrivals) == 0 || now.Sub(o.arrivals[0].arrived) < patience && o.bytes <= maxHeldBytes {
		return packet{}, false
	}
	return o.take(), true
}

// rest returns the packets that wait, one by one, when no more will come.
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
