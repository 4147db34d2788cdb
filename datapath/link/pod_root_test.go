package link

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/nstest"
)

// dual is a dual-stack attachment to pod, with fixed MAC and addresses.
func dual(pod *nstest.NS) PodLink {
	return PodLink{
		Netns: pod.Path, IfName: "eth0", HostIf: HostName("c1", "eth0"), MAC: api.MAC{2, 0, 0, 0, 0, 5}, MTU: 1410,
		Addrs:    []netip.Prefix{netip.MustParsePrefix("10.0.1.5/24"), netip.MustParsePrefix("fd00:1::5/64")},
		Gateways: []netip.Addr{netip.MustParseAddr("10.0.1.1"), netip.MustParseAddr("fd00:1::1")},
	}
}

// router gives the host end of l the gateways' addresses, in place of OVS.
func router(node *nstest.NS, l PodLink) {
	node.Exec("sysctl", "-qw", "net.ipv6.conf."+l.HostIf+".disable_ipv6=0", "net.ipv4.conf."+l.HostIf+".arp_ignore=0")
	for _, g := range l.Gateways {
		bits := 24
		if g.Is6() {
			bits = 64
		}
		node.Exec("ip", "addr", "add", netip.PrefixFrom(g, bits).String(), "dev", l.HostIf, "nodad")
	}
}

// Attach is Create and Configure. If it fails, neither end remains.
func Attach(l PodLink) error {
	v, err := Create(l)
	if err != nil {
		return err
	}
	if err := v.Configure(); err != nil {
		return errors.Join(err, Detach(l.HostIf))
	}
	return nil
}

func attach(t *testing.T, node *nstest.NS, l PodLink) {
	t.Helper()
	node.Must(func() error { return Attach(l) })
}

// Below an MTU of 1280 the kernel has no IPv6 parameters for an interface: a pod without an IPv6 address needs none.
func TestRootSmallMTU(t *testing.T) {
	node, pod := nstest.New(t), nstest.New(t)
	l := dual(pod)
	l.MTU = 576
	err := node.Do(func() error { return Attach(l) })
	if err == nil || !strings.Contains(err.Error(), "is not in 1280..65535") {
		t.Errorf("with an IPv6 address: %v", err)
	}
	l.Addrs, l.Gateways = l.Addrs[:1], l.Gateways[:1]
	attach(t, node, l)
	node.Must(func() error { return Check(l) })
	g := gateway()
	g.MTU, g.Addrs = l.MTU, g.Addrs[:1]
	node.IP("tuntap add dev " + g.Name + " mode tap")
	ensureGateway(t, node, g)
	if changes := ensureGateway(t, node, g); len(changes) > 0 {
		t.Errorf("EnsureGateway changed %v again", changes)
	}
}

func hostIndex(node *nstest.NS, l PodLink) string {
	return strings.SplitN(node.Exec("ip", "-o", "link", "show", l.HostIf), ":", 2)[0]
}

// Each change of an interface makes ovs-vswitchd look at all its ports: what it would change itself is set from the
// start.
func TestRootHostEndIsAsAPortWants(t *testing.T) {
	node, pod := nstest.New(t), nstest.New(t)
	l := dual(pod)
	attach(t, node, l)
	if flags := node.IP("-o link show dev " + l.HostIf); !strings.Contains(flags, "PROMISC") {
		t.Errorf("the host's end is not promiscuous: %s", flags)
	}
}

// A runtime may disable IPv6 in the namespaces that it creates. The pod must have both families at once, without
// waiting for duplicate address detection.
func TestRootAttachDual(t *testing.T) {
	node, pod := nstest.New(t), nstest.New(t)
	pod.Exec("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
	l := dual(pod)
	l.TxOff = true
	attach(t, node, l)

	addrs := pod.IP("-o addr show dev eth0")
	for _, want := range []string{"inet 10.0.1.5/24", "inet6 fd00:1::5/64", "inet6 fe80::ff:fe00:5/64"} {
		if !strings.Contains(addrs, want) {
			t.Errorf("the pod lacks %s:\n%s", want, addrs)
		}
	}
	if global := pod.IP("-o addr show dev eth0 scope global"); strings.Contains(global, "tentative") {
		t.Errorf("an address is tentative:\n%s", global)
	}
	// The link-local address is ready as soon as a kernel worker has run, without a second of duplicate address
	// detection.
	if got := pod.Exec("cat", "/proc/sys/net/ipv6/conf/eth0/accept_dad"); strings.TrimSpace(got) != "0" {
		t.Errorf("accept_dad is %s, want 0", got)
	}
	nstest.Wait(t, time.Minute, "the link-local address to be usable", func() bool {
		return !strings.Contains(pod.IP("-o addr show dev eth0"), "tentative")
	})
	router(node, l)
	pod.Exec("ping", "-c1", "-W15", "10.0.1.1")
	pod.Exec("ping", "-c1", "-W15", "fd00:1::1")
	if out := pod.Exec("ethtool", "-k", "eth0"); !strings.Contains(out, "tx-checksumming: off") ||
		!strings.Contains(out, "tx-tcp-segmentation: off") {
		t.Errorf("tx offload is not off:\n%s", out)
	}
	if got := pod.Exec("cat", "/proc/sys/net/ipv6/conf/eth0/accept_ra"); strings.TrimSpace(got) != "0" {
		t.Errorf("accept_ra is %s, want 0", got)
	}
	node.Must(func() error { return Check(l) })

	index := hostIndex(node, l)
	attach(t, node, l)
	if now := hostIndex(node, l); now != index {
		t.Errorf("a second Attach made a new veth: index %s, was %s", now, index)
	}
	if !strings.Contains(node.IP("-d -o link show "+l.HostIf), "group 26220") {
		t.Errorf("the host end is not in our group:\n%s", node.IP("-d link show "+l.HostIf))
	}
}

// The node must neither answer for its own addresses on the host end nor take part in IPv6 there: the userspace
// datapath leaves the kernel a copy of each frame.
func TestRootHostEndIsSilent(t *testing.T) {
	node, pod := nstest.New(t), nstest.New(t)
	node.IP("addr add 192.0.2.9/32 dev lo")
	l := dual(pod)
	attach(t, node, l)
	if out := node.IP("-6 -o addr show dev " + l.HostIf); out != "" {
		t.Errorf("the host end has IPv6 addresses:\n%s", out)
	}
	arping := func() error {
		pod.IP("route replace 192.0.2.9/32 dev eth0")
		_, err := pod.Run("ping", "-c1", "-W1", "192.0.2.9")
		return err
	}
	_ = arping() // fails in any case, but sends ARP requests
	if out := pod.IP("neigh show 192.0.2.9"); strings.Contains(out, "lladdr") {
		t.Errorf("the node answered ARP for its own address on the host's end: %s", out)
	}
	// With the kernel's default it does answer, which shows that the test can fail.
	node.Exec("sysctl", "-qw", "net.ipv4.conf."+l.HostIf+".arp_ignore=0")
	pod.IP("neigh flush dev eth0")
	nstest.Wait(t, time.Minute, "an answer with arp_ignore=0", func() bool {
		_ = arping()
		return strings.Contains(pod.IP("neigh show 192.0.2.9"), "lladdr")
	})
}

func TestRootAttachFamilies(t *testing.T) {
	node := nstest.New(t)
	for name, c := range map[string]struct {
		addr, gateway string
		ping          []string
	}{
		"IPv4":                 {"10.0.1.5/24", "10.0.1.1", nil},
		"IPv6":                 {"fd00:1::5/64", "fd00:1::1", nil},
		"IPv4 gateway outside": {"10.0.1.5/32", "10.0.9.1", nil},
		"IPv6 gateway outside": {"fd00:1::5/128", "fd00:9::1", nil},
	} {
		t.Run(name, func(t *testing.T) {
			pod := nstest.New(t)
			l := dual(pod)
			l.HostIf = HostName(name, "eth0")
			l.Addrs, l.Gateways = []netip.Prefix{netip.MustParsePrefix(c.addr)}, []netip.Addr{netip.MustParseAddr(c.gateway)}
			attach(t, node, l)
			t.Cleanup(func() { node.Must(func() error { return Detach(l.HostIf) }) })
			router(node, l)
			node.Exec("ip", "route", "replace", netip.PrefixFrom(l.Addrs[0].Addr(), l.Addrs[0].Addr().BitLen()).String(), "dev", l.HostIf)
			pod.Exec("ping", "-c1", "-W15", c.gateway)
			node.Must(func() error { return Check(l) })
		})
	}
}

// Whatever fails, the error names it and no end of the veth remains.
func TestRootAttachFailureLeavesNothing(t *testing.T) {
	node, pod := nstest.New(t), nstest.New(t)
	taken := nstest.New(t)
	taken.IP("link add eth0 type veth peer name other")
	routed := nstest.New(t)
	routed.IP("link add net1 type veth peer name other")
	routed.IP("link set net1 up")
	routed.IP("addr add 10.8.0.2/24 dev net1")
	routed.IP("route add default via 10.8.0.1")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*PodLink)
		says   string
	}{
		"no netns":            {func(l *PodLink) { l.Netns = "/run/netns/fltest-none" }, "no such file"},
		"not a netns":         {func(l *PodLink) { l.Netns = file }, "unknown FS magic"},
		"node's own":          {func(l *PodLink) { l.Netns = node.Path }, "node's own network namespace"},
		"ifname taken":        {func(l *PodLink) { l.Netns = taken.Path }, "already has an interface eth0"},
		"multicast MAC":       {func(l *PodLink) { l.MAC = api.MAC{1, 0, 0, 0, 0, 1} }, "creating the veth"},
		"bad address":         {func(l *PodLink) { l.Addrs = append(l.Addrs, netip.MustParsePrefix("ff02::5/64")) }, "adding address ff02::5"},
		"address twice":       {func(l *PodLink) { l.Addrs = append(l.Addrs, l.Addrs[0]) }, "adding address 10.0.1.5"},
		"default route taken": {func(l *PodLink) { l.Netns = routed.Path }, "the pod has a route to 0.0.0.0/0 already"},
	} {
		l := dual(pod)
		c.change(&l)
		err := node.Do(func() error { return Attach(l) })
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got error %v, want one containing %q", name, err, c.says)
		}
		if left := node.IP("-o link show"); strings.Contains(left, " fl") {
			t.Errorf("%s: left on the node:\n%s", name, left)
		}
		for _, ns := range []*nstest.NS{pod, routed} {
			if left := ns.IP("-o link show"); strings.Contains(left, "eth0") {
				t.Errorf("%s: left in the pod:\n%s", name, left)
			}
		}
	}
	if out := taken.IP("-o link show"); !strings.Contains(out, "eth0") {
		t.Errorf("the pod's own eth0 was removed:\n%s", out)
	}
}

// An agent that is killed during Attach leaves its veth half configured, or with the other end in a namespace of an
// earlier attempt.
func TestRootAttachAfterCrash(t *testing.T) {
	for name, leave := range map[string]func(node, pod *nstest.NS, l PodLink){
		"unconfigured": func(node, pod *nstest.NS, l PodLink) {
			node.IP(fmt.Sprintf("link add %s group %d type veth peer name eth0 netns %s", l.HostIf, Group, pod.Name))
		},
		"other end still on the node": func(node, pod *nstest.NS, l PodLink) {
			node.IP(fmt.Sprintf("link add %s group %d type veth peer name tmp0", l.HostIf, Group))
		},
		"address lost": func(node, pod *nstest.NS, l PodLink) {
			node.Must(func() error { return Attach(l) })
			pod.IP("addr del 10.0.1.5/24 dev eth0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			node, pod := nstest.New(t), nstest.New(t)
			l := dual(pod)
			leave(node, pod, l)
			attach(t, node, l)
			node.Must(func() error { return Check(l) })
			if n := strings.Count(node.IP("-o link show"), "\n"); n != 2 { // lo and the host end
				t.Errorf("the node has %d interfaces, want 2:\n%s", n, node.IP("-o link show"))
			}
		})
	}
}

// Check names each difference.
func TestRootCheck(t *testing.T) {
	node, pod := nstest.New(t), nstest.New(t)
	l := dual(pod)
	l.TxOff = true
	check := func() string {
		if err := node.Do(func() error { return Check(l) }); err != nil {
			return err.Error()
		}
		return ""
	}
	if got := check(); !strings.Contains(got, l.HostIf+" is missing on the node") {
		t.Errorf("before Attach Check says %q", got)
	}
	for _, c := range []struct {
		inPod bool
		cmd   string
		says  []string
	}{
		{true, "ip link set eth0 down", []string{"eth0 is down", "lacks route 0.0.0.0/0 via 10.0.1.1"}},
		{true, "ip link set eth0 address 02:00:00:00:00:99", []string{"has MAC 02:00:00:00:00:99, want 02:00:00:00:00:05"}},
		{true, "ip link set eth0 mtu 1300", []string{"eth0 has MTU 1300, want 1410"}},
		{true, "ip addr del 10.0.1.5/24 dev eth0", []string{"lacks address 10.0.1.5/24"}},
		{true, "ip addr del fd00:1::5/64 dev eth0", []string{"lacks address fd00:1::5/64"}},
		{true, "ip route del default", []string{"lacks route 0.0.0.0/0 via 10.0.1.1"}},
		{true, "ip -6 route del default", []string{"lacks route ::/0 via fd00:1::1"}},
		{true, "ethtool -K eth0 tx on", []string{"tx checksum offload of eth0 is on"}},
		{true, "ip link set eth0 name eth5", []string{"the pod has no interface eth0"}},
		{false, "ip link set " + l.HostIf + " down", []string{"host end is down"}},
		{false, "ip link set " + l.HostIf + " mtu 1200", []string{"host end has MTU 1200"}},
		{true, "ip link del eth0", []string{"is missing on the node"}},
	} {
		attach(t, node, l)
		if got := check(); got != "" {
			t.Fatalf("before %q: %s", c.cmd, got)
		}
		ns := node
		if c.inPod {
			ns = pod
		}
		ns.Exec(strings.Fields(c.cmd)...)
		for _, want := range c.says {
			if got := check(); !strings.Contains(got, want) {
				t.Errorf("after %q Check says %q, want %q", c.cmd, got, want)
			}
		}
		node.Must(func() error { return Detach(l.HostIf) })
	}
}

// An interface that only looks like Fairlead's is not mistaken for it.
func TestRootCheckOtherEnd(t *testing.T) {
	node, pod := nstest.New(t), nstest.New(t)
	l := dual(pod)
	l.Addrs, l.Gateways = l.Addrs[:1], nil
	node.IP(fmt.Sprintf("link add %s mtu %d group %d type veth peer name other", l.HostIf, l.MTU, Group))
	node.IP("link set " + l.HostIf + " up")
	// Its peer index equals the host end's index by chance: each namespace numbers its interfaces independently.
	pod.IP(fmt.Sprintf("link add eth0 index 77 mtu %d address %s type veth peer name x0 index %s", l.MTU, l.MAC, hostIndex(node, l)))
	pod.IP("link set eth0 up")
	pod.IP("addr add 10.0.1.5/24 dev eth0")
	err := node.Do(func() error { return Check(l) })
	if err == nil || !strings.HasSuffix(err.Error(), ": eth0 is not the other end of "+l.HostIf) {
		t.Errorf("Check says %v", err)
	}
}

func TestRootDetachAndHosts(t *testing.T) {
	node, pod := nstest.New(t), nstest.New(t)
	l := dual(pod)
	attach(t, node, l)
	// Each is similar in one respect, but not Fairlead's.
	node.IP("link add flfoo type veth peer name x1")
	node.IP(fmt.Sprintf("link add foreign group %d type veth peer name x2", Group))
	node.IP(fmt.Sprintf("link add flbr group %d type bridge", Group))

	var hosts []string
	node.Must(func() (err error) { hosts, err = Hosts(); return err })
	if !slices.Equal(hosts, []string{l.HostIf}) {
		t.Errorf("Hosts says %v, want only %s", hosts, l.HostIf)
	}
	for _, name := range []string{"flfoo", "foreign", "flbr"} {
		err := node.Do(func() error { return Detach(name) })
		if err == nil || !strings.Contains(err.Error(), "not one of Fairlead's") {
			t.Errorf("Detach of foreign %s: %v", name, err)
		}
		node.IP("link show " + name)
	}
	for range 2 {
		node.Must(func() error { return Detach(l.HostIf) })
	}
	if out := pod.IP("-o link show"); strings.Contains(out, "eth0") {
		t.Errorf("the pod's end is still there:\n%s", out)
	}
}

// No goroutine may run in a pod's namespace afterwards.
func TestRootThreadsComeBack(t *testing.T) {
	node := nstest.New(t)
	before, err := exec.Command("readlink", "/proc/self/ns/net").Output()
	if err != nil {
		t.Fatal(err)
	}
	node.Must(func() error {
		want, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		for i := range 20 {
			pod := PodLink{Netns: "/run/netns/fltest-none", IfName: "eth0", HostIf: HostName(fmt.Sprint(i), "eth0"), MTU: 1400,
				Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.1.5/24")}}
			_ = Attach(pod)
		}
		if got, _ := os.Readlink("/proc/thread-self/ns/net"); got != want {
			return fmt.Errorf("the calling thread is in %s, was in %s", got, want)
		}
		return nil
	})
	for range 50 {
		got := make(chan string)
		go func() {
			s, _ := os.Readlink("/proc/thread-self/ns/net")
			got <- s
		}()
		if s := <-got; s != strings.TrimSpace(string(before)) {
			t.Fatalf("a goroutine runs in %s, want %s", s, before)
		}
	}
}

// Many pods start at once; each Attach is independent, and a dump that concurrent changes interrupt is still complete.
func TestRootAttachInParallel(t *testing.T) {
	const count = 16
	node := nstest.New(t)
	errs := make(chan error, 2*count)
	var links []PodLink
	for i := range count {
		l := dual(nstest.New(t))
		l.HostIf = HostName(fmt.Sprint("c", i), "eth0")
		links = append(links, l)
	}
	for _, l := range links {
		go func() {
			errs <- node.Do(func() error { return Attach(l) })
			errs <- node.Do(func() error {
				hosts, err := Hosts()
				if err == nil && !slices.Contains(hosts, l.HostIf) {
					err = fmt.Errorf("Hosts lacks %s", l.HostIf)
				}
				return err
			})
		}()
	}
	for range 2 * count {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for _, l := range links {
		node.Must(func() error { return Check(l) })
	}
}

// Pods are created and checked over and over: the names of all features of an interface are a megabyte.
func TestRootAllocates(t *testing.T) {
	const most = 128 << 10 // bytes
	node, pod := nstest.New(t), nstest.New(t)
	l := dual(pod)
	l.TxOff = true
	for _, c := range []struct {
		what string
		do   func(PodLink) error
	}{{"the veth", Attach}, {"a check", Check}} {
		var before, after runtime.MemStats
		node.Must(func() error {
			runtime.ReadMemStats(&before)
			defer runtime.ReadMemStats(&after)
			return c.do(l)
		})
		n := after.TotalAlloc - before.TotalAlloc
		t.Logf("%s allocates %d bytes", c.what, n)
		if n > most {
			t.Errorf("%s allocates %d bytes, want at most %d", c.what, n, most)
		}
	}
}
