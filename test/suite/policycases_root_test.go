package suite

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// tierYAML is a ClusterNetworkPolicy about what reaches a.
func tierYAML(name, tier string, priority int, action string) string {
	return fmt.Sprintf("apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: %s}\n"+
		"spec: {tier: %s, priority: %d, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: a}}}}, "+
		"ingress: [{action: %s, from: [{namespaces: {}}]}]}\n", name, tier, priority, action)
}

func namespaceYAML(team string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: default, labels: {team: %s}}\n", team)
}

// Each set of policies lets pods on both nodes reach a, or blocks them.
func policyCases(t *testing.T, c cluster, a, b, remote place) {
	const toA = "podSelector: {matchLabels: {app: a}}"
	deny := policyYAML("deny", toA)
	team := policyYAML("team", toA+", ingress: [{from: [{namespaceSelector: {matchLabels: {team: red}}}]}]")
	both := policyYAML("both", toA+", ingress: [{from: [{namespaceSelector: {matchLabels: {team: red}}, "+
		"podSelector: {matchLabels: {app: c}}}]}]")
	for n, x := range []struct {
		name         string
		docs         []string
		near, remote bool
	}{
		{"a namespace without the label", []string{team}, false, false},
		{"a namespace with another label", []string{team, namespaceYAML("blue")}, false, false},
		{"a namespace with the label", []string{team, namespaceYAML("red")}, true, true},
		{"both selectors", []string{both, namespaceYAML("red")}, false, true},
		{"the namespace's name", []string{policyYAML("named", toA+
			", ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}}]}]")}, true, true},
		{"Admin denies", []string{tierYAML("one", "Admin", 1, "Deny")}, false, false},
		{"Admin accepts before a NetworkPolicy", []string{tierYAML("one", "Admin", 1, "Accept"), deny}, true, true},
		{"Admin passes to a NetworkPolicy", []string{tierYAML("one", "Admin", 1, "Pass"), deny}, false, false},
		{"the first of Admin counts", []string{tierYAML("one", "Admin", 1, "Accept"), tierYAML("two", "Admin", 2, "Deny")}, true, true},
		{"Admin passes by its others", []string{tierYAML("one", "Admin", 1, "Pass"), tierYAML("two", "Admin", 2, "Deny")}, true, true},
		{"Baseline denies", []string{tierYAML("one", "Baseline", 1, "Deny")}, false, false},
		{"a NetworkPolicy before Baseline", []string{tierYAML("one", "Baseline", 1, "Deny"), both, namespaceYAML("red")}, false, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			c.apply(t, x.docs...)
			defer c.remove(t, x.docs...)
			to := netip.AddrPortFrom(a.ips[n%2], 8080) // alternating families
			reaches(t, b, "tcp", to, x.near)
			reaches(t, remote, "tcp", to, x.remote)
		})
	}
	allowed(t, b, a, 8080, true)
}

// A pod that is its own endpoint of a Service reaches itself, whatever the policies.
func ownEndpoint(t *testing.T, c cluster, a place) {
	docs := []string{policyYAML("all", "podSelector: {}, policyTypes: [Ingress, Egress]"), serviceYAML("own", 3, "", 8080, a)}
	c.apply(t, docs...)
	defer c.remove(t, docs...)
	for _, ip := range clusterIPs(3) {
		for _, network := range []string{"tcp", "udp"} {
			reaches(t, a, network, netip.AddrPortFrom(ip, 80), true)
		}
	}
}

// Datagrams in fragments pass where their port is allowed, and nowhere else. The userspace datapath of Open vSwitch 3.1
// may lose those that are allowed.
func fragments(t *testing.T, c cluster, a, b, remote place) {
	docs := policyYAML("web", "podSelector: {matchLabels: {app: a}}, ingress: [{ports: [{port: 8080, protocol: UDP}]}]")
	c.apply(t, docs)
	defer c.remove(t, docs)
	large := strings.Repeat("x", 4000)
	for _, p := range []place{b, remote} {
		for i := range a.ips {
			for port, want := range map[uint16]bool{8080: true, 9090: false} {
				if want && ovstest.UnderTest(t) == ovstest.Netdev {
					continue
				}
				conn, err := call(t, p, "udp", netip.AddrPortFrom(a.ips[i], port), 0)
				must(t, 0, err)
				wait(t, labtest.Patience(t, 10*time.Second), func() string {
					must(t, 0, conn.SetDeadline(time.Now().Add(300*time.Millisecond)))
					_, err := fmt.Fprintln(conn, large)
					if err == nil {
						_, err = conn.r.ReadString('\n')
					}
					if (err == nil) != want {
						return fmt.Sprintf("4000 bytes from %s to %s port %d: %v, want it to work: %v", p.name, a.ips[i], port, err, want)
					}
					return ""
				})
			}
		}
	}
}

// Each SCTP association is judged by its own port, even after one to another port was accepted.
func sctpPorts(t *testing.T, c cluster, a, b, remote place) {
	docs := policyYAML("sctp", "podSelector: {matchLabels: {app: a}}, ingress: [{ports: [{port: 7000, protocol: SCTP}]}]")
	c.apply(t, docs)
	defer c.remove(t, docs)
	wait(t, labtest.Patience(t, 10*time.Second), func() string {
		if flows := c.flows(t, "node1"); strings.Count(flows, "tp_dst=7000") < 2 {
			return "the policy is not in the tables of both families:\n" + flows
		}
		return ""
	})
	c.datapathFollows(t)
	for i, network := range []string{"ip4:132", "ip6:132"} {
		var in net.PacketConn
		must(t, 0, a.do(func() (err error) { in, err = net.ListenPacket(network, ""); return err }))
		t.Cleanup(func() { in.Close() })
		for _, p := range []place{b, remote} {
			var out net.Conn
			must(t, 0, p.do(func() (err error) { out, err = net.Dial(network, a.ips[i].String()); return err }))
			t.Cleanup(func() { out.Close() })
			for n, port := range []uint16{7001, 7000, 7001} {
				arrives := func() string {
					if arrived := initArrives(t, out, in, port, uint32(n+1)); arrived != (port == 7000) {
						return fmt.Sprintf("%s from %s, INIT %d, to port %d: arrives: %v", network, p.name, n, port, arrived)
					}
					return ""
				}
				if port == 7000 { // a busy machine loses packets
					wait(t, labtest.Patience(t, 10*time.Second), arrives)
				} else if wrong := arrives(); wrong != "" {
					t.Error(wrong)
				}
			}
		}
	}
}

// initArrives sends INIT chunks until one has arrived, at most three.
func initArrives(t *testing.T, out net.Conn, in net.PacketConn, port uint16, tag uint32) bool {
	t.Helper()
	packet := make([]byte, 32) // RFC 9260: the common header, and an INIT chunk
	binary.BigEndian.PutUint16(packet, 5000)
	binary.BigEndian.PutUint16(packet[2:], port)
	packet[12] = 1
	binary.BigEndian.PutUint16(packet[14:], 20)
	binary.BigEndian.PutUint32(packet[16:], tag)
	binary.BigEndian.PutUint32(packet[20:], 65536)
	binary.BigEndian.PutUint16(packet[24:], 1)
	binary.BigEndian.PutUint16(packet[26:], 1)
	binary.LittleEndian.PutUint32(packet[8:], crc32.Checksum(packet, crc32.MakeTable(crc32.Castagnoli)))
	b := make([]byte, 1500)
	for range 3 {
		_, err := out.Write(packet)
		must(t, 0, err)
		must(t, 0, in.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		for {
			n, _, err := in.ReadFrom(b)
			if err != nil {
				break
			}
			if n >= 20 && binary.BigEndian.Uint16(b[2:]) == port && binary.BigEndian.Uint32(b[16:]) == tag {
				return true
			}
		}
	}
	return false
}

// Traffic without ports that never pauses also ends when the rule that allowed it is removed: pings, and other
// protocols, such as a tunnel of the pods' own.
func withoutPorts(t *testing.T, c cluster, a, b, remote place) {
	c.apply(t, policyYAML("in", "podSelector: {matchLabels: {app: a}}, "+
		"ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]"))
	allowed(t, remote, a, 8080, false)
	const ping, ping6, tunnel = "ip4:1", "ip6:58", "ip4:4"
	type stream struct {
		network string
		in      net.PacketConn
		out     net.Conn
		packet  []byte
	}
	var streams []stream
	for network, packet := range map[string]string{ // RFC 792: an echo request
		ping:  "\x08\x00\xee\xe6\x12\x34\x00\x01flow!",
		ping6: "\x80\x00\x00\x00\x12\x34\x00\x01flow!", tunnel: "\x00\x00\x00\x00\x12\x34\x00\x01flow!"} {
		s := stream{network: network, packet: []byte(packet)}
		to := a.ips[0]
		if network == ping6 {
			to = a.ips[1]
		}
		must(t, 0, a.do(func() (err error) { s.in, err = net.ListenPacket(network, ""); return err }))
		t.Cleanup(func() { s.in.Close() })
		must(t, 0, b.do(func() (err error) { s.out, err = net.Dial(network, to.String()); return err }))
		t.Cleanup(func() { s.out.Close() })
		streams = append(streams, s)
	}
	arrives := func(s stream) bool { // a stream that a rule forbids sends ten times a second
		_, err := s.out.Write(s.packet)
		must(t, 0, err)
		buf := make([]byte, 1500)
		for looks := 0; looks < 2; {
			must(t, 0, s.in.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
			n, _, err := s.in.ReadFrom(buf)
			if err == nil && bytes.HasSuffix(buf[:n], []byte("flow!")) {
				return true
			}
			if err != nil { // on a busy machine it is late, but before the answer to a later request
				reaches(t, a, "tcp", netip.AddrPortFrom(b.ips[0], 8080), true)
				looks++
			}
		}
		return false
	}
	all := func(want bool) string {
		for _, s := range streams {
			if got := arrives(s); got != want {
				return fmt.Sprintf("%s from b to a arrives: %v", s.network, got)
			}
		}
		return ""
	}
	wait(t, labtest.Patience(t, 10*time.Second), func() string { return all(true) })
	c.apply(t, policyYAML("in", "podSelector: {matchLabels: {app: a}}, policyTypes: [Ingress]"))
	wait(t, labtest.Patience(t, 10*time.Second), func() string { return all(false) })
	allowed(t, a, b, 8080, true) // the node still works
	for range 3 {
		if text := all(false); text != "" {
			t.Errorf("what had ended goes on: %s", text)
		}
	}
	c.remove(t, policyYAML("in", "podSelector: {}"))
	wait(t, labtest.Patience(t, 10*time.Second), func() string { return all(true) })
}
