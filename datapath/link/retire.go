package link

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Retired is the interface group of host ends that wait for Reap: "fr" as a number.
const Retired = 0x6672

// Retire marks a veth for removal, by its host end: Reap removes all of these at once, in the time that the kernel
// takes for one, some 15 ms. A missing one counts as retired; one that is not Fairlead's is refused.
func Retire(hostIf string) error {
	host, err := hostLink(hostIf)
	if err == nil && host != nil {
		err = netlink.LinkSetGroup(host, Retired)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) { // deleted with the pod's namespace
		return fmt.Errorf("retiring %s: %w", hostIf, err)
	}
	return nil
}

// Reap removes all retired veths, also those that an earlier process retired, and returns when they are gone.
func Reap() error {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(Retired)))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil && !errors.Is(err, unix.ENODEV) { // none in the group
		return fmt.Errorf("removing stale veths: %w", err)
	}
	return nil
}
