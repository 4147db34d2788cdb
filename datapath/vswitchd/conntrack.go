package vswitchd

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Connection is one that conntrack has an entry of, as its first packet went.
type Connection struct {
	Protocol uint8 // IANA's number
	From, To netip.AddrPort
	// Answers come from To, or from what that is translated to.
	Answers netip.AddrPort
	Closed  bool // TCP: it has surely ended. One that is half closed goes on.
}

// Connections returns those of a conntrack zone of the datapath of that type that have ports.
func Connections(ctx context.Context, runDir, datapath string, zone uint16) ([]Connection, error) {
	text, err := Appctl(ctx, runDir, "dpctl/dump-conntrack", datapath+"@ovs-"+datapath, fmt.Sprintf("zone=%d", zone))
	if err != nil {
		return nil, err
	}
	var out []Connection
	for line := range strings.Lines(text) {
		if c, ok := connection(line); ok {
			out = append(out, c)
		}
	}
	return out, nil
}

// connection reads
// "tcp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=1,dport=2),reply=(...),zone=1,mark=1,protoinfo=(state=ESTABLISHED)".
func connection(line string) (c Connection, ok bool) {
	name, rest, _ := strings.Cut(line, ",orig=(")
	c.Protocol = map[string]uint8{"tcp": 6, "udp": 17, "sctp": 132}[name]
	original, rest, there := strings.Cut(rest, "),reply=(")
	reply, rest, whole := strings.Cut(rest, ")")
	if c.Protocol == 0 || !there || !whole {
		return c, false
	}
	var from, to, answers bool
	c.From, from = end(original, "src", "sport")
	c.To, to = end(original, "dst", "dport")
	c.Answers, answers = end(reply, "src", "sport")
	c.Closed = strings.Contains(rest, "state=TIME_WAIT") || strings.Contains(rest, "state=CLOSED")
	return c, from && to && answers
}

// end reads one end of a tuple.
func end(tuple, addr, port string) (netip.AddrPort, bool) {
	values := map[string]string{}
	for part := range strings.SplitSeq(tuple, ",") {
		key, value, _ := strings.Cut(part, "=")
		values[key] = value
	}
	a, aerr := netip.ParseAddr(values[addr])
	n, nerr := strconv.ParseUint(values[port], 10, 16)
	return netip.AddrPortFrom(a, uint16(n)), aerr == nil && nerr == nil
}
