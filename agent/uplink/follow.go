package uplink

import (
	"context"
	"errors"
	"time"

	"github.com/vishvananda/netlink"

	datapath "github.com/fairlead-cni/fairlead/datapath/uplink"
)

// followAgain is the pause between two subscriptions: what has ended one, such as more changes than the kernel buffers,
// may last.
const followAgain = time.Second

// notifications are the kernel's notifications of interfaces and addresses. Both channels are closed when they end, and
// must be read until then.
type notifications struct {
	links chan netlink.LinkUpdate
	addrs chan netlink.AddrUpdate
}

// subscribe requests notifications until ctx ends. After an error, those that arrive must still be read.
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
		for range s.links { //nolint:revive // discarded
		}
	}()
	go func() {
		for range s.addrs { //nolint:revive // likewise
		}
	}()
}

// followInterfaces makes Run check the uplink when one of its interfaces or addresses changes, until ctx ends. When
// notifications end, some may be lost: it subscribes again, after which Run checks the uplink.
func (n *Uplink) followInterfaces(ctx context.Context, subscribe func(context.Context) (notifications, error)) {
	failed := false
	for ctx.Err() == nil {
		one, cancel := context.WithCancel(ctx)
		s, err := subscribe(one)
		if failed {
			n.check.Notify()
		}
		if err == nil {
			failed = false
			err = n.follow(ctx, s)
		}
		cancel()
		s.drain()
		if err != nil && !failed {
			n.log.Error(err, "watching interfaces; until that works, changes of the uplink are seen every "+n.every.Uplink.String())
		}
		failed = true
		select {
		case <-ctx.Done():
		case <-time.After(followAgain):
		}
	}
}

// follow returns nil if ctx has ended, else an error when notifications have ended.
func (n *Uplink) follow(ctx context.Context, s notifications) error {
	bridge := 0 // the index of br-uplink, as last reported
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
				n.check.Notify()
			case l.Attrs().Name == n.state.Load().nic:
				n.check.Notify()
			}
		case a, ok := <-s.addrs:
			if !ok {
				return errors.New("the kernel's notifications of addresses have ended")
			}
			if !a.NewAddr && (bridge == 0 || a.LinkIndex == bridge) {
				n.check.Notify()
			}
		}
	}
}
