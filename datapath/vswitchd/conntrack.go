package vswitchd

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/datapath/internal/jsonrpc"
)

// Connection is a conntrack entry, in the direction of its first packet. Without ports, as for a ping, they are 0.
type Connection struct {
	Protocol uint8 // IANA's number
	From, To netip.AddrPort
	// Replies come from To, or from what it is translated to.
	Answers netip.AddrPort
	Closed  bool // TCP: it has certainly ended. One that is half closed has not.
}

const tcp, udp, sctp = 6, 17, 132

// protocols are the names that Open vSwitch prints for IANA's numbers; it prints others as numbers.
var protocols = map[string]uint8{"icmp": 1, "igmp": 2, "tcp": tcp, "udp": udp, "dccp": 33, "icmpv6": 58,
	"sctp": sctp, "udplite": 136}

// HasPorts reports whether connections are distinguished by ports.
func (c Connection) HasPorts() bool {
	return c.Protocol == tcp || c.Protocol == udp || c.Protocol == sctp
}

// EachConnection calls each with the connections of a conntrack zone of the datapath of that type, as they are read. It
// may take until ctx ends: some seconds for hundreds of thousands. An error from each ends it.
func EachConnection(ctx context.Context, runDir, datapath string, zone uint16, each func(Connection) error) error {
	socket, err := controlSocket(runDir)
	if err != nil {
		return err
	}
	const command = "dpctl/dump-conntrack"
	arguments := []string{datapath + "@ovs-" + datapath, fmt.Sprintf("zone=%d", zone)}
	err = jsonrpc.Lines(ctx, "ovs-vswitchd", socket, command, arguments, func(line []byte) error {
		if c, ok := connection(string(line)); ok {
			return each(c)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("ovs-appctl %s zone=%d: %w", command, zone, err)
	}
	return nil
}

// connection reads
// "tcp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=1,dport=2),reply=(...),zone=1,mark=1,protoinfo=(state=ESTABLISHED)" and
// "icmp,orig=(src=10.0.0.1,dst=10.0.0.2,id=1,type=8,code=0),reply=(...),zone=1,mark=1".
func connection(line string) (c Connection, ok bool) {
	name, rest, _ := strings.Cut(line, ",orig=(")
	original, rest, there := strings.Cut(rest, "),reply=(")
	reply, rest, whole := strings.Cut(rest, ")")
	if c.Protocol, ok = protocol(name); !ok || !there || !whole {
		return c, false
	}
	var from, to, answers bool
	c.From, from = c.end(original, "src", "sport")
	c.To, to = c.end(original, "dst", "dport")
	c.Answers, answers = c.end(reply, "src", "sport")
	c.Closed = strings.Contains(rest, "state=TIME_WAIT") || strings.Contains(rest, "state=CLOSED")
	return c, from && to && answers
}

// end reads one end of a tuple.
func (c Connection) end(tuple, addr, port string) (netip.AddrPort, bool) {
	var address, number string
	for part := range strings.SplitSeq(tuple, ",") {
		switch key, value, _ := strings.Cut(part, "="); key {
		case addr:
			address = value
		case port:
			number = value
		}
	}
	a, aerr := netip.ParseAddr(address)
	if !c.HasPorts() {
		return netip.AddrPortFrom(a, 0), aerr == nil
	}
	n, nerr := strconv.ParseUint(number, 10, 16)
	return netip.AddrPortFrom(a, uint16(n)), aerr == nil && nerr == nil
}

func protocol(name string) (number uint8, ok bool) {
	if number, ok = protocols[name]; ok {
		return number, true
	}
	n, err := strconv.ParseUint(name, 10, 8)
	return uint8(n), err == nil
}
