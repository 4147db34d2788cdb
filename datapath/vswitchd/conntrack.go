package vswitchd

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
)

// Connection is one that conntrack has an entry of, as its first packet went.
type Connection struct {
	Protocol uint8 // IANA's number
	From, To netip.AddrPort
	Closed   bool // TCP: it has surely ended. One that is half closed goes on.
}

// datapaths are the names of the datapaths of each type.
var datapaths = map[string]string{api.DatapathSystem: "system@ovs-system", api.DatapathNetdev: "netdev@ovs-netdev"}

// Connections returns those of a conntrack zone of the datapath of that type that have ports.
func Connections(ctx context.Context, runDir, datapath string, zone uint16) ([]Connection, error) {
	text, err := Appctl(ctx, runDir, "dpctl/dump-conntrack", datapaths[datapath], fmt.Sprintf("zone=%d", zone))
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
	tuple, _, whole := strings.Cut(rest, ")")
	if c.Protocol == 0 || !whole {
		return c, false
	}
	values := map[string]string{}
	for part := range strings.SplitSeq(tuple, ",") {
		key, value, _ := strings.Cut(part, "=")
		values[key] = value
	}
	end := func(addr, port string) netip.AddrPort {
		a, aerr := netip.ParseAddr(values[addr])
		n, nerr := strconv.ParseUint(values[port], 10, 16)
		ok = ok && aerr == nil && nerr == nil
		return netip.AddrPortFrom(a, uint16(n))
	}
	ok = true
	c.Closed = strings.Contains(rest, "state=TIME_WAIT") || strings.Contains(rest, "state=CLOSED")
	c.From, c.To = end("src", "sport"), end("dst", "dport")
	return c, ok
}
