package steer

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/probe"
)

// kinds are the kernel's hooks: each test runs with both if the kernel has both.
func kinds() []Hooks { return []Hooks{TCX, Clsact} }

// journeys are frames and their receivers. One pod is untagged, one in VLAN 10.
func journeys() []struct {
	sent
	to string
} {
	return []struct {
		sent
		to string
	}{
		{sent{from: "outside", src: outMAC, dst: hostMAC}, "host"},
		{sent{from: "outside", src: outMAC, dst: podMAC}, "pods"},
		{sent{from: "outside", src: outMAC, dst: podMAC, vlan: 10}, "host"},      // the pod is not in that VLAN
		{sent{from: "outside", src: outMAC, dst: podMAC, vlan: 5 << 13}, "pods"}, // a priority tag: untagged
		{sent{from: "outside", src: outMAC, dst: pod10MAC, vlan: 10}, "pods"},
		{sent{from: "outside", src: outMAC, dst: pod10MAC, vlan: 7<<13 | 10}, "pods"}, // with a priority
		{sent{from: "outside", src: outMAC, dst: pod10MAC, vlan: 10, service: true}, "host"},
		{sent{from: "outside", src: outMAC, dst: pod10MAC}, "host"},
		{sent{from: "outside", src: outMAC, dst: hostMAC, vlan: 10}, "host"},
		{sent{from: "outside", src: outMAC, dst: all}, "host pods"},
		{sent{from: "outside", src: outMAC, dst: group}, "host pods"},
		{sent{from: "outside", src: outMAC, dst: all, vlan: 10}, "host pods"},
		{sent{from: "outside", src: outMAC, dst: all, vlan: 20}, "host"},
		{sent{from: "outside", src: outMAC, dst: lldp}, "host"},
		// A switch that reflects what a pod has sent.
		{sent{from: "outside", src: podMAC, dst: all}, "host"},
		{sent{from: "outside", src: pod10MAC, dst: pod10MAC, vlan: 10}, "host"},

		{sent{from: "host", src: hostMAC, dst: outMAC}, "outside"},
		{sent{from: "host", src: hostMAC, dst: podMAC}, "pods"},
		{sent{from: "host", src: hostMAC, dst: pod10MAC, vlan: 10}, "pods"},
		{sent{from: "host", src: hostMAC, dst: pod10MAC, vlan: 20}, "outside"},
		{sent{from: "host", src: hostMAC, dst: all}, "outside pods"},
		{sent{from: "host", src: hostMAC, dst: group, vlan: 10}, "outside pods"},
		{sent{from: "host", src: hostMAC, dst: group, vlan: 20}, "outside"},
		{sent{from: "host", src: hostMAC, dst: lldp}, "outside"},

		{sent{from: "pods", src: podMAC, dst: outMAC}, "outside"},
		{sent{from: "pods", src: pod10MAC, dst: outMAC, vlan: 10}, "outside"},
		{sent{from: "pods", src: podMAC, dst: hostMAC}, "host"},
		{sent{from: "pods", src: pod10MAC, dst: vlanMAC, vlan: 10}, "host"},
		{sent{from: "pods", src: podMAC, dst: all}, "host outside"},
		{sent{from: "pods", src: pod10MAC, dst: group, vlan: 10}, "host outside"},
		{sent{from: "pods", src: podMAC, dst: pod10MAC}, "outside"}, // not its VLAN
		{sent{from: "pods", src: pod10MAC, dst: outMAC}, ""},        // not its VLAN
		{sent{from: "pods", src: hostMAC, dst: outMAC}, ""},
		{sent{from: "pods", src: hostMAC, dst: all}, ""},
		{sent{from: "pods", src: outMAC, dst: hostMAC}, ""},
	}
}

// Every frame is delivered to its receivers, once.
func TestRootFramesAreSorted(t *testing.T) {
	for _, hooks := range kinds() {
		t.Run(string(hooks), func(t *testing.T) {
			n := setup(t, hooks)
			n.ensure()
			n.sync(Entry{mac(t, podMAC), 0}, Entry{mac(t, pod10MAC), 10})
			for _, j := range journeys() {
				if got := n.send(j.sent, j.to); got != j.to {
					t.Errorf("%s: arrived at %q, want %q", j.sent, got, j.to)
				}
			}
			n.counted()
			n.sync(Entry{mac(t, podMAC), 0})
			for _, j := range []sent{{from: "outside", src: outMAC, dst: pod10MAC, vlan: 10},
				{from: "outside", src: outMAC, dst: all, vlan: 10}} {
				if got := n.send(j, "host"); got != "host" {
					t.Errorf("the pod in VLAN 10 is gone, and %s arrives at %q", j, got)
				}
			}
			if got := n.send(sent{from: "pods", src: pod10MAC, dst: outMAC, vlan: 10}, ""); got != "" {
				t.Errorf("the pod in VLAN 10 is gone, and what it sends arrives at %q", got)
			}
		})
	}
}

// counted compares the counters with what was sent.
func (n *node) counted() {
	n.t.Helper()
	want := map[string]uint64{}
	for _, j := range journeys() {
		to := map[string]string{"outside": "underlay", "pods": "pods", "host": "host", "": "dropped"}[j.to]
		if to == "" {
			to = "both"
		}
		from := map[string]string{"outside": "underlay", "host": "host", "pods": "pods"}[j.from]
		want[from+" "+to]++
	}
	// What a pod sends to the host or the underlay meets a second program.
	want["underlay host"] += want["pods host"] + want["pods both"]
	want["host underlay"] += want["pods underlay"] + want["pods both"]
	var wrong []string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		counts, err := n.config.Counts()
		n.must(err)
		wrong = nil
		for _, c := range counts {
			if want := want[c.Source+" "+c.Way]; c.Frames != want || c.Bytes < 60*c.Frames {
				wrong = append(wrong, fmt.Sprintf("from %s to %s: %d frames, %d bytes; want %d frames", c.Source, c.Way, c.Frames,
					c.Bytes, want))
			}
		}
		if len(wrong) == 0 { // a drop is counted after send has returned
			return
		}
	}
	n.t.Error(strings.Join(wrong, "\n"))
}

// Removal restores the previous state exactly.
func TestRootRemoveLeavesNothing(t *testing.T) {
	for _, hooks := range kinds() {
		t.Run(string(hooks), func(t *testing.T) {
			n := setup(t, hooks)
			before := n.tc()
			n.ensure()
			n.ensure()
			if hooks == Clsact && !strings.Contains(n.tc(), "clsact") {
				t.Errorf("no clsact:\n%s", n.tc())
			}
			if err := n.remove(); err != nil {
				t.Fatal(err)
			}
			if s := n.state(); s.Complete || s.Left || n.tc() != before {
				t.Errorf("%+v, before:\n%s\nnow:\n%s", s, before, n.tc())
			}
			if got := n.send(sent{from: "outside", src: outMAC, dst: all}, "host"); got != "host" {
				t.Errorf("a broadcast arrives at %q", got)
			}
			if err := n.remove(); err != nil {
				t.Errorf("a second time: %v", err)
			}
		})
	}
}

// tc is everything that is attached to both devices.
func (n *node) tc() (out string) {
	for _, what := range []string{"qdisc show dev eth0", "qdisc show dev port0", "filter show dev eth0 ingress",
		"filter show dev eth0 egress", "filter show dev port0 ingress"} {
		text, _ := n.host.Run(append([]string{"tc"}, strings.Fields(what)...)...) // fails without clsact
		out += text
	}
	return out
}

// hostStream sends to the host from outside, 500 packets a second, until stop is called. It waits for late replies
// longer than ping(8) does.
func (n *node) hostStream() (stop func() probe.Report) {
	n.t.Helper()
	at, from := netip.MustParseAddr("192.0.2.11"), netip.MustParseAddr("192.0.2.1")
	var ends []ns.NetNS
	for _, of := range []*nstest.NS{n.host, n.outside} {
		netns, err := ns.GetNS(of.Path)
		if err != nil {
			n.t.Fatal(err)
		}
		n.t.Cleanup(func() { netns.Close() })
		ends = append(ends, netns)
	}
	port, end, err := probe.Echo(ends[0], at)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(end)
	s, err := probe.Start(ends[1], from, netip.AddrPortFrom(at, port), 2*time.Millisecond)
	if err != nil {
		n.t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // of the stream, before the change
	return s.Stop
}

// Programs of another version, or for another port, are replaced without loss of the host's packets.
func TestRootReplaced(t *testing.T) {
	for _, hooks := range kinds() {
		t.Run(string(hooks), func(t *testing.T) {
			n := setup(t, hooks)
			n.ensure()
			n.sync(Entry{mac(t, podMAC), 0})
			real := n.config.Port
			n.host.IP("link add port1 type veth peer name pods1")
			n.host.IP("link set port1 up")
			stop := n.hostStream()
			for range 10 {
				n.config.Port = n.index(n.host, "port1")
				if n.state().Complete {
					t.Error("programs for another port count as right")
				}
				n.ensure()
				n.config.Port = real
				n.ensure()
			}
			if r := stop(); r.Lost > 0 || r.Duplicates > 0 || r.Sent < 20 {
				t.Errorf("the host lost packets: %s", r)
			}
			if got := n.send(sent{from: "outside", src: outMAC, dst: podMAC}, "pods"); got != "pods" {
				t.Errorf("a frame for a pod arrives at %q", got)
			}
		})
	}
}

// If the pins are lost, the programs are attached again and the old ones removed: nothing is delivered twice.
func TestRootPinsLost(t *testing.T) {
	n := setup(t, TCX)
	n.ensure()
	first := n.config
	n.config.Dir = bpffs(t)
	if n.state().Complete {
		t.Error("programs without a pin count as right")
	}
	n.ensure()
	n.sync(Entry{mac(t, podMAC), 0})
	if got := n.send(sent{from: "outside", src: outMAC, dst: all}, "host pods"); got != "host pods" {
		t.Errorf("a broadcast arrives at %q", got)
	}
	n.must(n.remove())
	n.config = first
}

// Programs are found and removed even if it is unknown where they are pinned.
func TestRootRemoveWithoutPins(t *testing.T) {
	n := setup(t, Any)
	n.ensure()
	elsewhere := n.config
	elsewhere.Dir = "/tmp/nowhere/fairlead"
	for _, left := range []bool{true, false} {
		n.host.Must(func() error {
			s, err := elsewhere.State()
			if err == nil && s.Left != left {
				t.Errorf("programs are left: %v, want %v", s.Left, left)
			}
			return err
		})
		n.host.Must(elsewhere.Remove)
	}
	if got := n.send(sent{from: "outside", src: outMAC, dst: all}, "host"); got != "host" {
		t.Errorf("a broadcast arrives at %q", got)
	}
}

// External removals are detected and repaired.
func TestRootTamperedWith(t *testing.T) {
	n := setup(t, Any)
	n.ensure()
	for _, change := range []struct {
		what string
		do   func()
	}{
		{"a program is gone", func() {
			n.must(n.host.Do(func() error {
				return errors.Join(n.config.detachTCX(hooks()[1]), n.config.detachFilter(hooks()[1]))
			}))
		}},
		{"the NIC's addresses are others", func() { n.config.Hosts = []api.MAC{mac(t, outMAC)} }},
		{"the port is recreated", func() {
			n.host.IP("link del port0")
			n.host.IP("link add port0 type veth peer name pods0 netns " + n.pods.Name)
			n.host.IP("link set port0 up")
			n.config.Port = n.index(n.host, "port0")
		}},
		{"all is gone", func() { n.must(n.remove()) }},
	} {
		change.do()
		if n.state().Complete {
			t.Errorf("%s: not seen", change.what)
		}
		n.ensure()
	}
}

// A map that was filled up externally has room again after the next Sync.
func TestRootFullMap(t *testing.T) {
	n := setup(t, Any)
	n.ensure()
	n.host.Must(func() error {
		m, err := ebpf.LoadPinnedMap(n.config.pin("macs"), nil)
		if err != nil {
			return err
		}
		defer m.Close()
		for i := 0; ; i++ {
			err := m.Put(key(Entry{api.MAC{2, 0xee, 0, byte(i >> 16), byte(i >> 8), byte(i)}, 0}), isPod)
			if errors.Is(err, unix.E2BIG) {
				return nil
			} else if err != nil {
				return err
			}
		}
	})
	n.sync(Entry{mac(t, podMAC), 0})
	if got := n.send(sent{from: "outside", src: outMAC, dst: podMAC}, "pods"); got != "pods" {
		t.Errorf("a frame for the pod arrives at %q", got)
	}
}

// A pinned map that another version or another program created is replaced, and the pods that can be read from it are
// kept: no pod is lost, and the host's packets pass.
func TestRootMapOfAnotherVersion(t *testing.T) {
	known := Entry{mac(t, podMAC), 0}
	for _, c := range []struct {
		name string
		spec ebpf.MapSpec
		// kept: the entries have Fairlead's format, so the pods are known without another Sync.
		kept bool
	}{
		{"without memory from the start", ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: most,
			Flags: unix.BPF_F_NO_PREALLOC}, true},
		{"smaller", ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: 16}, true},
		{"greater", ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: 2 * most}, true},
		{"longer keys of a newer version", ebpf.MapSpec{Type: ebpf.Hash, KeySize: 16, ValueSize: 4, MaxEntries: most}, false},
		{"longer values of a newer version", ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: most}, false},
		{"a foreign array", ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := setup(t, Any)
			n.ensure()
			n.sync(known)
			n.replaceMap(&c.spec, c.kept, known)
			if n.state().Complete {
				t.Error("a map with another spec counts as right")
			}
			n.ensure()
			pod := sent{from: "outside", src: outMAC, dst: podMAC}
			if c.kept {
				if got := n.send(pod, "pods"); got != "pods" {
					t.Errorf("a frame for the pod arrives at %q before the map is filled", got)
				}
			}
			n.sync(known)
			if got := n.send(pod, "pods"); got != "pods" {
				t.Errorf("a frame for the pod arrives at %q", got)
			}
			if got := n.send(sent{from: "outside", src: outMAC, dst: hostMAC}, "host"); got != "host" {
				t.Errorf("a frame for the host arrives at %q", got)
			}
			if left, err := filepath.Glob(n.config.pin("*new")); err != nil || len(left) > 0 {
				t.Errorf("left: %q, %v", left, err)
			}
		})
	}
}

// replaceMap pins a map with another spec in place of the pods' map; fill: with the entries of a pod.
func (n *node) replaceMap(spec *ebpf.MapSpec, fill bool, pod Entry) {
	n.t.Helper()
	m, err := ebpf.NewMap(spec)
	n.must(err)
	defer m.Close()
	if fill {
		n.must(m.Put(key(pod), isPod))
		n.must(m.Put(key(Entry{broadcast(), pod.VLAN}), isPod))
	}
	n.must(os.Remove(n.config.pin("macs")))
	n.must(m.Pin(n.config.pin("macs")))
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// Other programs and filters are on the NIC too. They get everything that is not for pods, and keep their qdisc.
func TestRootOtherPrograms(t *testing.T) {
	for _, hooks := range kinds() {
		t.Run(string(hooks), func(t *testing.T) {
			n := setup(t, hooks)
			n.host.Exec("tc", "qdisc", "add", "dev", "eth0", "clsact")
			n.host.Exec("tc", "filter", "add", "dev", "eth0", "ingress", "pref", "10", "bpf", "da", "bytecode", "1,6 0 0 2")
			before := n.tc()
			n.ensure()
			n.sync(Entry{mac(t, podMAC), 0})
			for dst, want := range map[string]string{podMAC: "pods", all: "pods", hostMAC: ""} {
				if got := n.send(sent{from: "outside", src: outMAC, dst: dst}, want); got != want {
					t.Errorf("a frame of the host is dropped: one for %s arrives at %q, want %q", dst, got, want)
				}
			}
			n.must(n.remove())
			if after := n.tc(); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// The same with a program that was attached to tcx before Fairlead's.
func TestRootBesideOtherPrograms(t *testing.T) {
	n := setup(t, TCX)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, drop), asm.Return()}})
	n.must(err)
	defer program.Close()
	n.host.Must(func() error {
		l, err := link.AttachTCX(link.TCXOptions{Interface: n.config.NIC, Program: program, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	n.ensure()
	n.sync(Entry{mac(t, podMAC), 0})
	for dst, want := range map[string]string{podMAC: "pods", all: "pods", hostMAC: ""} {
		if got := n.send(sent{from: "outside", src: outMAC, dst: dst}, want); got != want {
			t.Errorf("a frame of the host is dropped: one for %s arrives at %q, want %q", dst, got, want)
		}
	}
	n.must(n.remove())
	if got := n.send(sent{from: "outside", src: outMAC, dst: hostMAC}, ""); got != "" {
		t.Errorf("the other program is gone: a frame for the host arrives at %q", got)
	}
}

// The error quotes the verifier.
func TestRootVerifierIsQuoted(t *testing.T) {
	n := setup(t, Any)
	n.must(Probe(n.config.Dir))
	n.must(n.config.makeDir())
	m, err := n.config.openMaps()
	n.must(err)
	defer m.close()
	spec := n.config.plan(m).spec(hooks()[0])
	spec.Instructions = spec.Instructions[:len(spec.Instructions)-1] // without its exit instruction
	_, err = load(spec)
	if err == nil || !strings.Contains(err.Error(), "Verifier log") || !strings.Contains(err.Error(), "last insn") {
		t.Errorf("a program without an end: %v", err)
	}
	if err := Probe("/proc/fairlead"); err == nil || !strings.Contains(err.Error(), "mount -t bpf") {
		t.Errorf("another file system: %v", err)
	}
}
