package uplink

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/uplink/preflight"
	"github.com/fairlead-cni/fairlead/datapath/uplink/steer"
	"github.com/fairlead-cni/fairlead/test/nstest"
)

const podIP, podIP6, podMAC = "192.0.2.40", "fd00::40", "02:00:00:00:01:40"

// setupSteer is a node for mode steer, with a file system of its own for the pins.
func setupSteer(t *testing.T, config string) *fixture {
	t.Helper()
	f := setup(t, config, noDAD()...)
	at, err := os.MkdirTemp("/tmp", "steer")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bpf", at, "bpf", 0, ""); err != nil {
		t.Fatalf("mounting a bpf file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		os.Remove(at)
	})
	f.mode, f.pins = api.UplinkSteer, filepath.Join(at, "fairlead")
	return f
}

// addPod creates a pod on br-int, which forwards everything.
func (f *fixture) addPod() *nstest.NS {
	f.t.Helper()
	pod := nstest.New(f.t)
	nstest.Veth(f.node, "pod0", pod, "eth0")
	pod.IP("link set eth0 address " + podMAC)
	pod.IP("addr add " + podIP + "/24 dev eth0")
	pod.IP("-6 addr add " + podIP6 + "/64 dev eth0 nodad")
	patient(pod, "eth0")
	// With the userspace datapath the kernel sees the frames as well.
	f.node.Exec("sysctl", "-q", "-w", "net.ipv6.conf.pod0.disable_ipv6=1", "net.ipv4.conf.pod0.arp_ignore=8")
	f.ovs.Ctl("add-port", "br-int", "pod0")
	f.ovs.Ctl("set-fail-mode", "br-int", "standalone")
	return pod
}

func (f *fixture) know(pods ...steer.Entry) {
	f.t.Helper()
	u := f.open()
	f.node.Must(func() error { return steer.Config{Dir: u.Journal().Pins}.Sync(pods) })
}

func entry(t *testing.T, mac string) steer.Entry {
	t.Helper()
	m, err := api.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	return steer.Entry{MAC: m}
}

// The host keeps its NIC, with all of its configuration, and the pod is on the underlay.
func TestRootSteerAttachAndRestore(t *testing.T) {
	f := setupSteer(t, rich)
	f.before = f.state()
	pod := f.addPod()
	if err := f.attach(); err != nil {
		t.Fatal(err, f.describe())
	}
	f.know(entry(t, podMAC))
	f.reached()
	for _, p := range []struct {
		from *nstest.NS
		to   string
	}{{pod, outIP}, {pod, outIP6}, {f.outside, podIP}, {f.outside, podIP6}, {f.node, podIP}, {f.node, podIP6},
		{pod, hostIP}, {pod, hostIP6}} {
		if out, err := p.from.Run("ping", "-c2", "-W15", p.to); err != nil || strings.Contains(out, "DUP") {
			t.Errorf("%s: %v %s", p.to, err, out)
		}
	}
	if testing.Verbose() {
		t.Log(f.status())
	}
	if s := f.status(); s.Mode != api.UplinkSteer || s.Next != "" || len(s.Counts) == 0 {
		t.Errorf("status %+v", s)
	}
	f.hostUntouched("attached")
	nic := f.plan().NIC
	f.node.IP("link set " + nic + " promisc off")
	u := f.open()
	f.node.Must(func() error { _, err := u.Repair(context.Background()); return err })
	if out := f.node.IP("link show " + nic); !strings.Contains(out, "PROMISC") {
		t.Errorf("the NIC does not receive packets for pods: %s", out)
	}
	if err := f.restore(); err != nil {
		t.Fatal(err, f.describe())
	}
	f.node.IP("link del pod0")
	f.reached()
	same(t, "restored", f.before, f.state())
	if _, err := os.Stat(f.pins); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("programs are still pinned: %v", err)
	}
}

func (f *fixture) status() (s Status) {
	f.t.Helper()
	u := f.open()
	f.node.Must(func() (err error) { s, err = u.Status(context.Background()); return err })
	return s
}

// hostUntouched compares the host's state with the one before. Only the NIC's promiscuity and the bridge may differ.
func (f *fixture) hostUntouched(when string) {
	f.t.Helper()
	now := f.state()
	now.Lines = slices.DeleteFunc(now.Lines, func(line string) bool {
		return strings.Contains(line, BridgeName) || strings.Contains(line, "pod0")
	})
	for i := range now.Lines {
		now.Lines[i] = strings.Replace(now.Lines[i], ",promisc promiscuity 1", " promiscuity 0", 1)
	}
	same(f.t, when, f.before, now)
}

// Mode auto chooses steer, leaves an uplink in its present mode, and chooses bridge if steer is refused, with the
// reason. A change to another requested mode is a restore and an attach.
func TestRootModes(t *testing.T) {
	f := setupSteer(t, simple)
	before := f.state()
	mode := func(want, is, why string) {
		t.Helper()
		f.mode = want
		if err := f.attach(); err != nil {
			t.Fatal(err, f.describe())
		}
		f.reached()
		if s := f.status(); s.Mode != is || s.Phase != Attached || !strings.Contains(s.NotSteer, why) ||
			why == "" && s.NotSteer != "" {
			t.Errorf("mode %s: %+v, want %s because of %q", want, s, is, why)
		}
	}
	mode(api.UplinkAuto, api.UplinkSteer, "")
	mode(api.UplinkBridge, api.UplinkBridge, "")
	mode(api.UplinkAuto, api.UplinkBridge, "")
	mode(api.UplinkSteer, api.UplinkSteer, "")
	if err := f.restore(); err != nil {
		t.Fatal(err)
	}
	same(t, "restored", before, f.state())
	pins := f.pins
	f.pins = "/tmp/nowhere/fairlead"
	f.mode = api.UplinkSteer
	var refused *preflight.RefusedError
	if err := f.attach(); !errors.As(err, &refused) || !strings.Contains(err.Error(), "not a file system of type bpf") {
		t.Errorf("nothing can be pinned: %v", err)
	}
	mode(api.UplinkAuto, api.UplinkBridge, "not a file system of type bpf")
	f.pins = pins
	if err := f.restore(); err != nil {
		t.Fatal(err)
	}
	f.inTheWay()
	mode(api.UplinkAuto, api.UplinkBridge, "not a directory")
	if err := f.restore(); err != nil {
		t.Fatal(err)
	}
	same(t, "restored", before, f.state())
}

// inTheWay pins something at the path of the programs' directory: preflight passes, and the step fails.
func (f *fixture) inTheWay() {
	f.t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		f.t.Fatal(err)
	}
	defer m.Close()
	if err := m.Pin(f.pins); err != nil {
		f.t.Fatal(err)
	}
}

// After a SIGKILL behind any step of attach, roll-back and restore the node recovers.
func TestRootSteerDeathAtEveryStep(t *testing.T) { deathAtEveryStep(t, setupSteer) }
