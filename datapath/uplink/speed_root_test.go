package uplink

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// Columns that are no uplink modes: the NIC is detached, or the programs redirect frames to a veth whose peer is a port
// of the bridge, instead of to the bridge's own port.
const bare, veth = "bare", "veth"

func columns() []string { return []string{bare, api.UplinkSteer, veth, api.UplinkBridge} }

// way is one direction of traffic.
type way struct {
	name     string
	from, to *nstest.NS
	addr     string
	pod      bool
}

// TestRootSpeed measures host and bridged pod against the outside: with the bare NIC, and in both uplink modes, one
// after the other. "make bench-uplink" prints medians of 10 rounds; without it there is one round, which only shows
// that the test works.
func TestRootSpeed(t *testing.T) {
	rounds, long := 1, 50*time.Millisecond
	if n, err := strconv.Atoi(os.Getenv("FAIRLEAD_BENCH_ROUNDS")); err == nil {
		rounds, long = n, 500*time.Millisecond
	}
	f := setupSteer(t, simple)
	pod := f.addPod()
	if f.datapath == ovstest.System { // forwards frames of all kinds
		for ns, dev := range map[*nstest.NS]string{f.node: nic, f.outside: "far0", pod: "eth0"} {
			ns.Exec("ethtool", "-K", dev, "tx", "on")
		}
	}
	ways := []way{
		{"host to outside", f.node, f.outside, outIP, false}, {"outside to host", f.outside, f.node, hostIP, false},
		{"pod to outside", pod, f.outside, outIP, true}, {"outside to pod", f.outside, pod, podIP, true},
	}
	streams, trips := map[string][]float64{}, map[string][]float64{}
	for range rounds {
		for _, mode := range columns() {
			f.goToMode(mode)
			for _, w := range ways {
				if w.pod && mode == bare {
					continue
				}
				key := fmt.Sprintf("%-6s %-16s", mode, w.name)
				streams[key] = append(streams[key], stream(t, w.from, w.to, w.addr, long))
				trips[key] = append(trips[key], roundTrip(t, w.from, w.to, w.addr))
			}
		}
	}
	for _, w := range ways {
		for _, mode := range columns() {
			if key := fmt.Sprintf("%-6s %-16s", mode, w.name); len(streams[key]) > 0 {
				t.Logf("SPEED %-6s %s %s Mbit/s, round trip %s us", f.datapath, key, spread(streams[key]), spread(trips[key]))
			}
		}
	}
	f.compare(ways[:2], bare, rounds)
	f.compare(ways[2:], api.UplinkBridge, rounds)
}

// compare measures mode steer against another column. The throughput of a shared machine changes by a third within
// seconds, so a round is many short alternating streams, and the result is the ratio of a round's sums.
func (f *fixture) compare(ways []way, other string, rounds int) {
	turns, long := 1, 50*time.Millisecond
	if rounds > 1 {
		turns, long = 8, 100*time.Millisecond
	}
	rates, trips := map[string][]float64{}, map[string][]float64{}
	order := []string{api.UplinkSteer, other}
	for range rounds {
		sent, took := map[string]float64{}, map[string]float64{}
		for range turns {
			for _, mode := range order {
				f.goToMode(mode)
				for _, w := range ways {
					sent[mode+w.name] += stream(f.t, w.from, w.to, w.addr, long)
					took[mode+w.name] += roundTrip(f.t, w.from, w.to, w.addr)
				}
			}
			slices.Reverse(order) // alternate which is first
		}
		for _, w := range ways {
			steer, other := api.UplinkSteer+w.name, other+w.name
			rates[w.name] = append(rates[w.name], 100*sent[steer]/sent[other])
			trips[w.name] = append(trips[w.name], 100*took[steer]/took[other])
		}
	}
	for _, w := range ways {
		f.t.Logf("SPEED %-6s %s, %s in percent of %s: throughput %s, round trip %s", f.datapath, w.name,
			api.UplinkSteer, other, spread(rates[w.name]), spread(trips[w.name]))
	}
}

// spread is the median, with minimum and maximum.
func spread(list []float64) string {
	slices.Sort(list)
	return fmt.Sprintf("%6.0f (%.0f to %.0f)", list[len(list)/2], list[0], list[len(list)-1])
}

// goToMode attaches the NIC in a mode, or detaches it, and waits until the outside is reached.
func (f *fixture) goToMode(mode string) {
	f.t.Helper()
	var err error
	_, _ = f.node.Run("ip", "link", "del", "up0") // of the column veth, if it exists
	if mode == bare {
		err = f.restore()
	} else {
		f.mode = strings.Replace(mode, veth, api.UplinkSteer, 1)
		err = f.attach()
	}
	if err != nil {
		f.t.Fatal(err, f.describe())
	}
	if f.mode == api.UplinkSteer && mode != bare {
		f.know(entry(f.t, podMAC))
	}
	if mode == veth {
		f.throughVeth()
	}
	f.reached()
	if mode != bare {
		nstest.Wait(f.t, time.Minute, "the pod to answer", func() bool {
			_, err := f.outside.Run("ping", "-c1", "-W1", podIP)
			return err == nil
		})
	}
}

// throughVeth puts a veth between the programs and the bridge.
func (f *fixture) throughVeth() {
	f.t.Helper()
	f.node.IP("link set " + BridgeName + " down") // otherwise the bridge would also deliver everything there
	f.node.IP("link add up0 type veth peer name up1")
	for _, dev := range []string{"up0", "up1"} {
		f.node.Exec("sysctl", "-q", "-w", "net.ipv6.conf."+dev+".disable_ipv6=1", "net.ipv4.conf."+dev+".arp_ignore=8")
		if f.datapath == ovstest.Netdev {
			f.node.Exec("ethtool", "-K", dev, "tx", "off")
		}
		f.node.IP("link set " + dev + " up")
	}
	f.ovs.Ctl("add-port", BridgeName, "up1")
	u := f.open()
	f.node.Must(func() error {
		c, err := u.steered()
		if err != nil {
			return err
		}
		port, err := net.InterfaceByName("up0")
		if err != nil {
			return err
		}
		c.Port = port.Index
		return c.Ensure()
	})
}

// stream sends by TCP for a duration, and returns Mbit/s.
func stream(t *testing.T, from, to *nstest.NS, addr string, d time.Duration) float64 {
	t.Helper()
	var l net.Listener
	to.Must(func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(addr, "0")); return err })
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for b := make([]byte, 1<<17); ; {
			if _, err := conn.Read(b); err != nil {
				return
			}
		}
	}()
	var conn net.Conn
	from.Must(func() (err error) { conn, err = net.DialTimeout("tcp", l.Addr().String(), time.Minute); return err })
	defer conn.Close()
	begin, sent, data := time.Now(), 0, make([]byte, 1<<17)
	if err := conn.SetDeadline(begin.Add(d + time.Minute)); err != nil {
		t.Fatal(err)
	}
	for time.Since(begin) < d {
		n, err := conn.Write(data)
		if err != nil {
			t.Fatalf("a stream to %s: %v", addr, err)
		}
		sent += n
	}
	return float64(sent) * 8 / 1e6 / time.Since(begin).Seconds()
}

// roundTrip is the median of 50 round trip times of a datagram, in us.
func roundTrip(t *testing.T, from, to *nstest.NS, addr string) float64 {
	t.Helper()
	var server, client net.Conn
	var l *net.UDPConn
	to.Must(func() (err error) { l, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(addr)}); return err })
	server = l
	defer server.Close()
	go func() {
		for b := make([]byte, 100); ; {
			n, peer, err := l.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = l.WriteToUDPAddrPort(b[:n], peer) // the client notices a lost reply
		}
	}()
	from.Must(func() (err error) { client, err = net.Dial("udp", l.LocalAddr().String()); return err })
	defer client.Close()
	var took []float64
	limit := time.Now().Add(time.Minute)
	for len(took) < 50 { // what the previous stream has left in queues is delivered first
		begin := time.Now()
		if err := client.SetDeadline(begin.Add(500 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		_, err := client.Write([]byte("there and back"))
		if err == nil {
			_, err = client.Read(make([]byte, 100))
		}
		if err != nil {
			if time.Now().After(limit) {
				t.Fatalf("%d round trips to %s in a minute: %v", len(took), addr, err)
			}
			continue
		}
		took = append(took, float64(time.Since(begin).Microseconds()))
	}
	slices.Sort(took)
	return took[len(took)/2]
}
