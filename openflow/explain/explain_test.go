package explain

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/openflow/policing"
)

// Taken from ovs-appctl 3.1.
const toTunnel = `Flow: icmp,in_port=p1,vlan_tci=0x0000,dl_src=02:00:00:00:00:01,nw_ttl=64

bridge("br-int")
----------------
 0. ip,in_port=p1,dl_src=02:00:00:00:00:01,nw_src=10.0.1.2, priority 200, cookie 0x666c030000000001
    set_field:0x1->reg0
    goto_table:3
 3. ip,reg0=0x1,nw_dst=10.0.2.0/24, priority 100, cookie 0x666c040000000001
    dec_ttl
    set_field:192.168.77.12->tun_dst
    output:"fairlead-tun0"
     -> output to native tunnel

    bridge("br-phy")
    ----------------
         0. priority 0
            NORMAL

Final flow: icmp,reg0=0x1,tun_src=0.0.0.0,tun_dst=192.168.77.12
Megaflow: recirc_id=0,eth,icmp,in_port=p1
Datapath actions: set(ipv4(ttl=63)),tun
`

const toUnderlay = `Flow: ip,in_port=p1,vlan_tci=0x0000

bridge("br-int")
----------------
 0. ip,in_port=p1,dl_src=02:00:00:00:00:01,nw_src=192.168.110.2, priority 200, cookie 0x666c030000000001
    set_field:0x4->reg0
    set_field:0x100a->reg1
    goto_table:3
 3. reg0=0x4, priority 470, cookie 0x666c050000000001
    goto_table:4
 4. reg0=0x4,reg1=0x100a, priority 100, cookie 0x666c050000000002
    push_vlan:0x8100
    set_field:4106->vlan_vid
    output:"fairlead-up0"

bridge("br-uplink")
-------------------
 0. priority 0
    NORMAL
     -> forwarding to learned port

Final flow: ip,reg0=0x4,reg1=0x100a,in_port=p1,dl_vlan=10
Datapath actions: push_vlan(vid=10,pcp=0),eth0
`

const toNear = `Flow: ip,in_port=p1,vlan_tci=0x0000

bridge("br-int")
----------------
 0. ip,in_port=p1,dl_src=02:00:00:00:00:01,nw_src=192.168.77.110, priority 200, cookie 0x666c0300dc789285
    set_field:0x1000->reg1
    goto_table:3
 3. ip,reg0=0x4,reg1=0x1000,nw_dst=10.0.1.3, priority 490, cookie 0x666c030069e5f81c
    set_field:0x3000->reg1
    check_pkt_larger(1464)->NXM_NX_REG1[14]
    resubmit(,3)
     3. reg0=0x4,reg1=0x7000, priority 491, cookie 0x666c02002533558e
            set_field:0e:00:00:00:00:01->eth_dst
            output:2
    resubmit(,3)
 3. ip,reg0=0x4,reg1=0x3000,nw_dst=10.0.1.3, priority 490, cookie 0x666c0300a8ff27dc
    set_field:0a:00:00:00:00:03->eth_dst
    output:3

Final flow: ip,reg0=0x4,reg1=0x3000,in_port=p1,vlan_tci=0x0000
Datapath actions: check_pkt_len(size=1464,gt(set(eth(dst=0e:00:00:00:00:01)),7),le(set(eth(dst=0a:00:00:00:00:03)),8))
`

const fromUnderlay = `bridge("br-uplink")
-------------------
 0. priority 0
    NORMAL

bridge("br-int")
----------------
 0. arp,in_port="fairlead-up0",vlan_tci=0x0000/0x1fff, priority 500, cookie 0x666c050000000001
    set_field:0x5->reg0
    set_field:0x1000->reg1
    goto_table:1
 1. arp,reg0=0x4,arp_tpa=192.168.77.1,arp_op=1, priority 400, cookie 0x666c020000000001
    move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[]
    IN_PORT
Datapath actions: drop
`

const dropped = `Flow: icmp,in_port=p1

bridge("br-int")
----------------
 0. priority 0, cookie 0x666c010000000001
    drop

Final flow: unchanged
Megaflow: recirc_id=0,eth,ip,in_port=p1
Datapath actions: drop
`

const unmatched = `bridge("br-int")
----------------
 3. No match.
    drop
Datapath actions: drop
`

// A client with session affinity sends to a Service.
const toService = `bridge("br-int")
----------------
 3. ip,reg0=0x1,reg2=0,nw_dst=10.96.0.0/16, priority 420, cookie 0x666c060045efe9df
    ct(table=2,zone=45056,nat)
    nat
     -> A clone of the packet is forked to recirculate. The forked pipeline will be resumed at table 2.
     -> Sets the packet to an untracked state, and clears all the conntrack fields.
Final flow: tcp
Datapath actions: ct(zone=40960,nat),ct(zone=45056,nat),recirc(0x1)

===============================================================================
recirc(0x8) - resume conntrack with default ct_state=trk|new (use --ct-next to customize)
===============================================================================

bridge("br-int")
----------------
    thaw
        Resuming from table 2
 2. ct_state=+new+trk,tcp,nw_dst=10.96.253.23,tp_dst=80, priority 200, cookie 0x666c06000b048ece
    set_field:0x2a30->reg4
    resubmit(,8)
     8. No match.
            drop
    resubmit(,9)
 9. ct_state=+new+trk,tcp,nw_dst=10.96.253.23,tp_dst=80, priority 199, cookie 0x666c0600ebe80a25
    group:62013215
     -> bucket 956908174: score 4159600
    bucket 956908174
            learn(table=8,idle_timeout=10800)
             >> suppressing side effects, so learn action ignored
            ct(commit,table=5,zone=NXM_NX_REG3[0..15],nat(dst=10.77.1.2:8080))
            nat(dst=10.77.1.2:8080)
Final flow: unchanged
Datapath actions: hash(l4(0)),recirc(0x5)
`

// The actions of conntrack and groups are described in words, and the endpoint is found.
func TestTraceOfService(t *testing.T) {
	want := []string{
		"table 3 Forward (routing to the destination) flow: ip, reg0=0x1, reg2=0, nw_dst=10.96.0.0/16",
		"  look it up in conntrack zone 45056, and translate known connections",
		"after conntrack:",
		"table 2 Service (a Service's endpoint) flow: ct_state=+new+trk, tcp, nw_dst=10.96.253.23, tp_dst=80",
		"  record: session affinity of 10800 s",
		"  continue in table 8",
		"table 8 Affinity (the client's last endpoint) no flow matches",
		"  continue in table 9",
		"table 9 Endpoint (the endpoint that session affinity keeps) flow: ct_state=+new+trk, tcp, nw_dst=10.96.253.23, tp_dst=80",
		"  to one of the Service's endpoints (group 62013215)",
		"  record: the client keeps this endpoint",
		"  the endpoint is 10.77.1.2:8080: record it in conntrack",
		"the datapath chooses the endpoint by a hash of each connection: this part of the trace ends here",
	}
	if got := Trace(toService, nil); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if to, kept := Chosen(toService); to.String() != "10.77.1.2:8080" || kept {
		t.Errorf("chosen: %s, kept: %v", to, kept)
	}
	had := strings.Replace(toService, "     8. No match.", "     8. tcp,nw_src=10.77.0.2, priority 200", 1)
	if to, kept := Chosen(had); to.String() != "10.77.1.2:8080" || !kept {
		t.Errorf("chosen: %s, kept: %v", to, kept)
	}
	if to, _ := Chosen(toTunnel); to.IsValid() || Zone(toTunnel) != "" || Zone(toService) != "45056" {
		t.Errorf("a trace without a Service: %s, %q; with one: %q", to, Zone(toTunnel), Zone(toService))
	}
}

// Taken from dpctl/dump-conntrack of 3.1.
func TestConnections(t *testing.T) {
	const dump = `tcp,orig=(src=10.77.0.3,dst=10.96.0.1,sport=40000,dport=80),reply=(src=10.77.1.2,dst=10.77.0.3,sport=8080,dport=40000),zone=40960,protoinfo=(state=ESTABLISHED)
tcp,orig=(src=10.77.0.3,dst=10.96.0.1,sport=40001,dport=80),reply=(src=10.77.1.2,dst=10.77.0.3,sport=8080,dport=40001),zone=40960,protoinfo=(state=TIME_WAIT)
tcp,orig=(src=10.77.0.3,dst=10.96.0.1,sport=40002,dport=81),reply=(src=10.77.1.2,dst=10.77.0.3,sport=8080,dport=40002),zone=40960
udp,orig=(src=10.77.0.3,dst=10.96.0.1,sport=40003,dport=80),reply=(src=10.77.1.2,dst=10.77.0.3,sport=8080,dport=40003),zone=40960
tcp,orig=(src=10.77.0.4,dst=10.96.0.1,sport=40003,dport=80),reply=(src=10.77.1.2,dst=10.77.0.4,sport=8080,dport=40003),zone=40960
`
	got := Connections(dump, netip.MustParseAddr("10.77.0.3"), netip.MustParseAddrPort("10.96.0.1:80"), "tcp")
	if len(got) != 1 || got[netip.MustParseAddrPort("10.77.1.2:8080")] != 2 {
		t.Error(got)
	}
}

func TestTrace(t *testing.T) {
	names := map[string]string{"p1": "pod default/a", "fairlead-tun0": "the tunnel"}
	for _, c := range []struct {
		trace string
		want  []string
	}{
		{toTunnel, []string{
			"table 0 Classify (source validation (anti-spoofing)) flow: " +
				"ip, from pod default/a, dl_src=02:00:00:00:00:01, nw_src=10.0.1.2",
			"  record: source is a pod",
			"  continue in table 3",
			"table 3 Forward (routing to the destination) flow: ip, reg0=0x1, nw_dst=10.0.2.0/24",
			"  route: decrement TTL",
			"  set tunnel destination 192.168.77.12",
			"  output to the tunnel",
			"  note: output to native tunnel",
			"  through the bridge br-phy, which has none of Fairlead's flows",
			"datapath actions: set(ipv4(ttl=63)),tun",
		}},
		{toUnderlay, []string{
			"table 0 Classify (source validation (anti-spoofing)) flow: " +
				"ip, from pod default/a, dl_src=02:00:00:00:00:01, nw_src=192.168.110.2",
			"  record: source is a bridged pod",
			"  record: VLAN 10 of the underlay",
			"  continue in table 3",
			"table 3 Forward (routing to the destination) flow: reg0=0x4",
			"  continue in table 4",
			"table 4 Output (VLAN of the underlay) flow: reg0=0x4, reg1=0x100a",
			"  push a VLAN tag",
			"  set VLAN ID 10",
			"  output to port fairlead-up0",
			"  through the bridge br-uplink, which has none of Fairlead's flows",
			"datapath actions: push_vlan(vid=10,pcp=0),eth0",
		}},
		{toNear, []string{
			"table 0 Classify (source validation (anti-spoofing)) flow: " +
				"ip, from pod default/a, dl_src=02:00:00:00:00:01, nw_src=192.168.77.110",
			"  record: untagged on the underlay",
			"  continue in table 3",
			"table 3 Forward (routing to the destination) flow: ip, reg0=0x4, reg1=0x1000, nw_dst=10.0.1.3",
			"  record: its size is compared with the MTU of the destination",
			"  frames of more than 1464 bytes go through the node, which fragments or refuses them; all others:",
			"  continue in table 3",
			"table 3 Forward (routing to the destination) flow: ip, reg0=0x4, reg1=0x3000, nw_dst=10.0.1.3",
			"  set Ethernet destination 0a:00:00:00:00:03",
			"  output to port 3",
			"datapath actions: check_pkt_len(size=1464,gt(set(eth(dst=0e:00:00:00:00:01)),7)," +
				"le(set(eth(dst=0a:00:00:00:00:03)),8))",
		}},
		{fromUnderlay, []string{
			"  through the bridge br-uplink, which has none of Fairlead's flows",
			"table 0 Classify (source validation (anti-spoofing)) flow: " +
				`arp, in_port="fairlead-up0", vlan_tci=0x0000/0x1fff`,
			"  record: source is the underlay",
			"  record: untagged on the underlay",
			"  continue in table 1",
			"table 1 Resolve (ARP and neighbour discovery) flow: " +
				"arp, reg0=0x4, arp_tpa=192.168.77.1, arp_op=1",
			"  copy for the reply: NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[]",
			"  output to the ingress port",
			"the datapath drops it",
		}},
		{dropped, []string{
			"table 0 Classify (source validation (anti-spoofing)) flow: any packet (lowest priority)",
			"  drop",
			"the datapath drops it",
		}},
		{unmatched, []string{
			"table 3 Forward (routing to the destination) no flow matches: the packet is dropped",
			"  drop",
			"the datapath drops it",
		}},
		{"", nil},
	} {
		if got := Trace(c.trace, names); !reflect.DeepEqual(got, c.want) {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
}

func FuzzTrace(f *testing.F) {
	f.Add(toTunnel)
	f.Fuzz(func(_ *testing.T, s string) { Trace(s, nil) })
}

// That a trace ends at a port is also reported to the program that continues it on the next node.
func TestLeaves(t *testing.T) {
	out := Trace(toUnderlay, map[string]string{"fairlead-up0": TheUplink})
	if !Leaves(out, TheUplink) || Leaves(out, TheTunnel) {
		t.Errorf("want it to leave only by the uplink: %q", out)
	}
}

// The tables of policies have names, and no other table has one of theirs.
func TestTablesOfPolicies(t *testing.T) {
	want := map[uint64]string{19: "", 20: "EgressState", 26: "EgressAccept", 27: "IngressState", 33: "IngressAccept",
		34: "EgressDenied", 35: "IngressDenied", 36: ""}
	for table, name := range want {
		if got, purpose, ok := policing.Describe(table); got != name || ok != (name != "") || ok != (purpose != "") {
			t.Errorf("table %d is %q, %q", table, got, purpose)
		}
	}
}
