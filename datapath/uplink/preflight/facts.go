package preflight

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
	"github.com/fairlead-cni/fairlead/datapath/uplink/rows"
)

// readFacts reads what the kernel and the host's network managers report about the NIC.
func readFacts(name string) (f nicFacts, err error) {
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return f, fmt.Errorf("listing interfaces: %w", err)
	}
	i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == name })
	if i < 0 {
		return f, fmt.Errorf("there is no interface %s", name)
	}
	nic := links[i]
	f.kind, f.ether = nic.Type(), nic.Attrs().EncapType == "ether"
	if t, ok := nic.(*netlink.Tuntap); ok && t.Mode == netlink.TUNTAP_MODE_TAP {
		f.kind = "tap"
	}
	f.bond, _ = nic.(*netlink.Bond)
	f.xdp = nic.Attrs().Xdp != nil && nic.Attrs().Xdp.Attached
	_, err = os.Stat(filepath.Join("/sys/class/net", name, "phy80211"))
	f.wireless = err == nil
	f.readLinks(nic, links)
	// Kubelet sets it in every container.
	run, unseen := nodeRun("/proc", os.Getenv("KUBERNETES_SERVICE_HOST") != "")
	if f.unseen = unseen; unseen == "" {
		f.manager = managerOf(nic.Attrs().Index, name, run)
	}
	return f, f.readAddresses(nic)
}

// readLinks finds the NIC's master, the interfaces on top of it, and a br-uplink that is not Open vSwitch's.
func (f *nicFacts) readLinks(nic netlink.Link, links []netlink.Link) {
	for _, l := range links {
		a := l.Attrs()
		switch {
		case a.Index == nic.Attrs().MasterIndex && a.Index != 0:
			f.master, f.mKind = a.Name, l.Type()
		case a.ParentIndex == nic.Attrs().Index && a.NetNsID < 0:
			c := upper{name: a.Name, kind: l.Type()}
			if v, ok := l.(*netlink.Vlan); ok {
				c.vlan = v.VlanId
			}
			f.uppers = append(f.uppers, c)
		case a.Name == rows.BridgeName && a.MasterIndex == 0 && l.Type() != "tuntap" && l.Type() != "openvswitch":
			f.hasOther = true
		}
	}
}

// readAddresses finds IPv6 addresses that cannot be moved as they are.
func (f *nicFacts) readAddresses(nic netlink.Link) error {
	addrs, err := kernel.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nic, netlink.FAMILY_V6) })
	if err != nil {
		return fmt.Errorf("listing addresses of %s: %w", nic.Attrs().Name, err)
	}
	for _, a := range addrs {
		switch {
		case a.Flags&unix.IFA_F_DADFAILED != 0:
			f.taken = append(f.taken, a.IP.String())
		case a.Flags&unix.IFA_F_TENTATIVE != 0:
			f.tentative = append(f.tentative, a.IP.String())
		}
		if a.Flags&unix.IFA_F_TEMPORARY != 0 {
			f.temporary = append(f.temporary, a.IP.String())
		}
	}
	return nil
}

// nodeRun returns the node's directory /run, also in a container that sees the node's processes. If process 1 is in
// another network namespace, its network managers do not manage these interfaces. In a Pod /run is not the node's:
// without the node's processes, unseen says what is missing.
func nodeRun(proc string, inPod bool) (run, unseen string) {
	of1 := filepath.Join(proc, "1/root/run")
	_, err := os.Stat(of1)
	node := err == nil && sameFile(proc, "ns/net")
	switch {
	case node && !(inPod && sameFile(proc, "ns/mnt")):
		return of1, ""
	case inPod:
		return "", "the Pod does not see the node's /run, where they say so. It needs hostPID and hostNetwork, and to be privileged"
	}
	return "/run", ""
}

// sameFile reports whether a file of this process in /proc is also that of process 1.
func sameFile(proc, name string) bool {
	ours, err := os.Stat(filepath.Join(proc, "thread-self", name))
	theirs, err1 := os.Stat(filepath.Join(proc, "1", name))
	return err == nil && err1 == nil && os.SameFile(ours, theirs)
}

// managerOf reads the files in which network managers publish the state of an interface.
func managerOf(index int, name, run string) manager {
	file := strconv.Itoa(index)
	if text, err := os.ReadFile(filepath.Join(run, "NetworkManager/devices", file)); err == nil &&
		strings.Contains(string(text), "managed=true") {
		return manager{"NetworkManager", fmt.Sprintf("set the interface unmanaged (nmcli device set %s managed no, "+
			"and [keyfile] unmanaged-devices=interface-name:%s in its configuration) and configure the interface otherwise",
			name, name)}
	}
	text, err := os.ReadFile(filepath.Join(run, "systemd/netif/links", file))
	if err == nil && !strings.Contains(string(text), "ADMIN_STATE=unmanaged") {
		return manager{"systemd-networkd", "set the interface unmanaged (Unmanaged=yes in a .network file) and " +
			"configure the interface otherwise"}
	}
	return manager{}
}

func haveNFT() bool {
	_, err := exec.LookPath("nft")
	return err == nil
}

// dadLimit is how long duplicate address detection may take: a second, and the delay before it (RFC 4862, 5.4).
const dadLimit = 4 * time.Second

// awaitAddresses waits until the kernel has finished duplicate address detection, as just after boot. It returns the
// IPv6 addresses for which it does not finish in time.
func awaitAddresses(ctx context.Context, name string, f nicFacts) ([]string, error) {
	for deadline := time.Now().Add(dadLimit); len(f.tentative) > 0 && time.Now().Before(deadline) && ctx.Err() == nil; {
		time.Sleep(50 * time.Millisecond)
		now, err := readFacts(name)
		if err != nil {
			return nil, err
		}
		f = now
	}
	return f.tentative, nil
}
