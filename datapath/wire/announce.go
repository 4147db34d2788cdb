package wire

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/internal/packetsocket"
)

// How often an address is announced, and how far apart: MAX_NEIGHBOR_ADVERTISEMENT
// and RetransTimer of RFC 4861 section 10; RFC 5227 asks for two, two seconds apart.
const announcements, announceEvery = 3, time.Second

// Announce announces on a pod's network that its addresses are at mac, with frames from its interface ifName in the
// network namespace at path netns. Devices that had cached another MAC update it. It takes two seconds, or until ctx
// ends.
func Announce(ctx context.Context, netns, ifName string, mac api.MAC, addrs []netip.Addr) error {
	s, err := openIn(netns, ifName)
	if err != nil {
		return fmt.Errorf("announcing %v from %s in %s: %w", addrs, ifName, netns, err)
	}
	defer s.Close()
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	for n := 1; ; n++ {
		for _, a := range addrs {
			if _, err := s.Write(announcement(mac, a)); err != nil {
				return fmt.Errorf("announcing %s from %s in %s: %w", a, ifName, netns, err)
			}
		}
		if n == announcements {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// openIn opens a socket that stays in a pod's network namespace, on a separate thread.
func openIn(netns, ifName string) (s *os.File, err error) {
	pod, err := ns.GetNS(netns)
	if err != nil {
		return nil, err
	}
	defer pod.Close()
	err = pod.Do(func(ns.NetNS) error {
		device, err := net.InterfaceByName(ifName)
		if err != nil {
			return err
		}
		s, err = packetsocket.Open(device, nil)
		return err
	})
	return s, err
}
