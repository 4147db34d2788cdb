package uplink

import (
	"context"
	"errors"
	"time"

	"github.com/vishvananda/netlink"

	datapath "github.com/fairlead-cni/fairlead/datapath/uplink"
)

// followAgain lies between two subscriptions: what has ended one, such as more changes than the kernel keeps, may last.
const followAgain = time.Second

// notifications are the kernel's, of interfaces and addresses. Both channels are closed when they end, and have to be
// read until then.
type notifications struct {
	links chan netlink.LinkUpdate
	addrs chan netlink.AddrUpdate
}

// subscribe asks for notifications until ctx ends. With an error those that come are to be read all the same.
func subscribe(ctx context.Context) (notifications, error) {
	s := notifications{make(chan netlink.LinkUpdate, 100), make(chan netlink.AddrUpdate, 100)}
	err := netlink.LinkSubscribe(s.links, ctx.Done())
	if err != nil {
		close(s.links)
	}
	aerr := netlink.AddrSubscribe(s.addrs, ctx.Done())
	if aerr != nil {
		close(s.addrs)
	}
	return s, errors.Join(err, aerr)
}

// drain reads what is left. It does not wait for that: only the next notification may end it.
func (s notifications) drain() {
	go func() {
		for range s.links { //nolint:revive // nobody is interested any more
		}
	}()
	go func() {
		for range s.addrs { //nolint:revive // likewise
		}
	}()
}

// followInterfaces has Run look at the uplink when an interface or address of it changes, until ctx ends. Where
// notifications end, some may be lost: it subscribes again, and Run looks after that.
func (n *Uplink) followInterfaces(ctx context.Context, subscribe func(context.Context) (notifications, error)) {
	failed := false
	for ctx.Err() == nil {
		one, cancel := context.WithCancel(ctx)
		s, err := subscribe(one)
		if failed {
			n.look.Notify()
		}
		if err == nil {
			failed = false
			err = n.follow(ctx, s)
		}
		cancel()
		s.drain()
		if err != nil && !failed {
			n.log.Error(err, "following interfaces; until that works, changes of the uplink are seen every "+n.every.Uplink.String())
		}
		failed = true
		select {
		case <-ctx.Done():
		case <-time.After(followAgain):
		}
	}
}

// follow returns nil if ctx has ended, else an error when notifications have.
func (n *Uplink) follow(ctx context.Context, s notifications) error {
	bridge := 0 // the index of br-uplink, as last heard
	for {
		select {
		case <-ctx.Done():
			return nil
		case l, ok := <-s.links:
			switch {
			case !ok:
				return errors.New("the kernel's notifications of interfaces have ended")
			case l.Attrs().Name == datapath.BridgeName:
				bridge = l.Attrs().Index
				n.look.Notify()
			case l.Attrs().Name == n.state.Load().nic:
				n.look.Notify()
			}
		case a, ok := <-s.addrs:
			if !ok {
				return errors.New("the kernel's notifications of addresses have ended")
			}
			if !a.NewAddr && (bridge == 0 || a.LinkIndex == bridge) {
				n.look.Notify()
			}
		}
	}
}
