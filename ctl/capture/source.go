package capture

import (
	"github.com/fairlead-cni/fairlead/datapath/capture"
)

// Interface is one that packets are captured from, as the file describes it.
type Interface struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	// Filter says in words what is captured.
	Filter string `json:"filter"`
}

// Source is a source of packets: an interface of this node, or another node.
type Source interface {
	// String names it in messages.
	String() string
	Interfaces() []Interface
	// Next waits for a packet, and returns it with the number of its interface. It returns io.EOF at the end.
	Next() (at int, f capture.Frame, err error)
	// Stop has Next return what was captured before, and then io.EOF.
	Stop()
	// Lost counts packets of an interface that arrived faster than they could be captured.
	Lost(at int) uint64
	// Close ends it at once.
	Close() error
}

// device is an interface of this node.
type device struct {
	*capture.Socket
	of Interface
}

// String implements Source.
func (d device) String() string { return d.of.Name }

// Interfaces implements Source.
func (d device) Interfaces() []Interface { return []Interface{d.of} }

// Next implements Source.
func (d device) Next() (int, capture.Frame, error) {
	f, err := d.Socket.Next()
	return 0, f, err
}

// Lost implements Source.
func (d device) Lost(int) uint64 { return d.Socket.Lost() }
