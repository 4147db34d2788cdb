// Package explain describes what Open vSwitch did with a packet. It reads the output of `ovs-appctl ofproto/trace
// --names` on Fairlead's bridge; the tables are those of package openflow.
package explain

import (
	"fmt"
	"iter"
	"regexp"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/clusterip"
	"github.com/fairlead-cni/fairlead/openflow/policing"
)

// tables are the names and the purposes of the pipeline's tables.
var tables = map[uint64]struct{ name, purpose string }{
	openflow.TableClassify:       {"Classify", "source validation (anti-spoofing)"},
	openflow.TableResolve:        {"Resolve", "ARP and neighbour discovery"},
	openflow.TableService:        {"Service", "a Service's endpoint"},
	openflow.TableForward:        {"Forward", "routing to the destination"},
	openflow.TableOutput:         {"Output", "VLAN of the underlay"},
	clusterip.TableCommit:        {"Commit", "another source port, to recognise replies"},
	clusterip.TableHairpinAnswer: {"HairpinAnswer", "the reply of a client that is its own endpoint"},
	clusterip.TableHairpin:       {"Hairpin", "back to the client that is its own endpoint"},
	openflow.TableAffinity:       {"Affinity", "the client's last endpoint"},
	openflow.TableEndpoint:       {"Endpoint", "the endpoint that session affinity keeps"},
}

// hit is the first line of a table in a trace; noMatch that of a table in which no flow matched, optional if a flow of
// another table has resubmitted to it and continues.
var (
	hit      = regexp.MustCompile(`^ *(\d+)\. (?:(.*), )?priority (\d+)(?:, cookie (0x[0-9a-f]+))?$`)
	noMatch  = regexp.MustCompile(`^ *(\d+)\. No match\.$`)
	optional = regexp.MustCompile(`^ {5,}\d+\. No match\.$`)
	setTo    = regexp.MustCompile(`^set_field:(.+)->(\w+)$`)
	// shown are the actions for a packet that is dropped and sent to the agent, with or without a meter.
	shown = regexp.MustCompile(`^(sample\(sample=100\.0%,actions\(meter\(\d+\),)?userspace\(pid=\d+,controller\([^()]*\)\)[)]*$`)
	// larger matches the comparison of a frame's size.
	larger = regexp.MustCompile(`^check_pkt_larger\((\d+)\)`)
	nexts  = regexp.MustCompile(`^(?:goto_table|resubmit\(,(\d+)\)):?(\d+)?$`)
)

// Trace returns one sentence for each step of a trace. names maps ports to names that people know ("pod default/a" for
// "fl3f2…"); a port without one keeps its own.
func Trace(trace string, names map[string]string) []string {
	var out []string
	bridge, inTables := "", false // bridge is empty once its first flow is seen
	none := false                 // the line before was about a table without a match, and the trace continues
	for line := range withoutLarge(trace) {
		line = strings.TrimRight(line, "\n")
		text := strings.TrimSpace(line)
		had := none
		none = optional.MatchString(line)
		switch {
		case empty(text) || had && text == "drop":
		case text == "thaw": // resumes after conntrack or a hash
			bridge, inTables = "", true
		case strings.HasPrefix(text, "bridge("):
			bridge = strings.TrimSuffix(strings.TrimPrefix(text, `bridge("`), `")`)
		case strings.HasPrefix(text, "Final flow:"):
			inTables = false
		case strings.HasPrefix(text, "Datapath actions:"):
			out = append(out, datapath(strings.TrimSpace(strings.TrimPrefix(text, "Datapath actions:"))))
		case bridge != "":
			// The packet may arrive or continue through another bridge.
			if inTables = hasOurCookie(line) || noMatch.MatchString(line); !inTables {
				out = append(out, "  through the bridge "+bridge+", which has none of Fairlead's flows")
			}
			bridge = ""
			fallthrough
		case inTables:
			if s := step(line, text, names); inTables && s != "" {
				out = append(out, s)
			}
		}
	}
	return out
}

// withoutLarge returns the lines of a trace except those about a packet that is too large for its destination: after a
// size comparison, a trace first follows such a packet, then any other, each from resubmit on.
func withoutLarge(trace string) iter.Seq[string] {
	return func(yield func(string) bool) {
		skip := 0
		for line := range strings.Lines(trace) {
			text := strings.TrimSpace(line)
			if skip > 0 && strings.HasPrefix(text, "resubmit(") {
				skip--
			}
			if skip == 0 && !yield(line) {
				return
			}
			if larger.MatchString(text) {
				skip = 2
			}
		}
	}
}

func empty(text string) bool { return text == "" || strings.HasPrefix(text, "---") }

// hasOurCookie reports whether a line of a trace shows a flow of package
// openflow.
func hasOurCookie(line string) bool {
	m := hit.FindStringSubmatch(line)
	if m == nil {
		return false
	}
	cookie, err := strconv.ParseUint(m[4], 0, 64)
	return err == nil && openflow.KindOf(cookie) != 0
}

func step(line, text string, names map[string]string) string {
	if m := noMatch.FindStringSubmatch(line); m != nil && optional.MatchString(line) {
		return fmt.Sprintf("table %s %s no flow matches", m[1], title(m[1]))
	} else if m != nil {
		return fmt.Sprintf("table %s %s no flow matches: the packet is dropped", m[1], title(m[1]))
	}
	if m := hit.FindStringSubmatch(line); m != nil {
		match := renamePort(m[2], names)
		if match == "" {
			match = "any packet (lowest priority)"
		}
		return fmt.Sprintf("table %s %s flow: %s", m[1], title(m[1]), match)
	}
	if a := action(text, names); a != "" {
		return "  " + a
	}
	return ""
}

func title(table string) string {
	n, err := strconv.ParseUint(table, 10, 8)
	t, known := tables[n]
	if !known {
		t.name, t.purpose, known = policing.Describe(n)
	}
	if err != nil || !known {
		return "(not one of Fairlead's tables):"
	}
	return fmt.Sprintf("%s (%s)", t.name, t.purpose)
}

// outputTo begins the line about an output port: Leaves looks for it.
const outputTo = "output to "

// plain are actions without parameters.
var plain = map[string]string{
	"drop":         "drop",
	"dec_ttl":      "route: decrement TTL",
	"pop_vlan":     "pop the VLAN tag",
	"resubmit(,0)": "start over without it",
	"IN_PORT":      "output to the ingress port",
}

func action(text string, names map[string]string) string {
	if s, is := conntrack(text); is {
		return s
	}
	switch {
	case plain[text] != "":
		return plain[text]
	case strings.HasPrefix(text, "group:"):
		return "to one of the Service's endpoints (group " + strings.TrimPrefix(text, "group:") + ")"
	case strings.HasPrefix(text, "push_vlan:"):
		return "push a VLAN tag"
	case text == openflow.OutputController.String():
		return "send it to the agent, which logs what policies deny"
	case strings.HasPrefix(text, "move:"):
		return "copy for the reply: " + strings.TrimPrefix(text, "move:")
	case strings.HasPrefix(text, "output:"):
		return outputTo + portName(strings.TrimPrefix(text, "output:"), names)
	case strings.HasPrefix(text, "->"), strings.HasPrefix(text, ">>"):
		return "note: " + strings.TrimSpace(strings.TrimLeft(text, "->"))
	}
	if m := larger.FindStringSubmatch(text); m != nil {
		return "frames of more than " + m[1] + " bytes go through the node, which fragments or refuses them; all others:"
	}
	if m := nexts.FindStringSubmatch(text); m != nil {
		return "continue in table " + m[1] + m[2]
	}
	if m := setTo.FindStringSubmatch(text); m != nil {
		return set(m[1], m[2])
	}
	return text
}

// sources are the values of reg0.
var sources = map[openflow.Source]string{
	openflow.FromPod:     "a pod",
	openflow.FromGateway: "the host",
	openflow.FromTunnel:  "the tunnel",
	openflow.FromBridged: "a bridged pod",
	openflow.FromUplink:  "the underlay",
}

func set(value, field string) string {
	n, _ := strconv.ParseUint(value, 0, 32) // 0 for an address
	source, known := sources[openflow.Source(n)]
	switch {
	case field == "reg0" && known:
		return "record: source is " + source
	case field == "reg1" && n >= openflow.VLANPresent:
		return "record: " + segment(openflow.Segment(n))
	case field == "reg4" && 0 < n && n < 1<<16: // endpoint IDs are larger, except one in 32,768
		return fmt.Sprintf("record: session affinity of %d s", n)
	case field == "vlan_vid" && n >= openflow.VLANPresent:
		return fmt.Sprintf("set VLAN ID %d", n-openflow.VLANPresent)
	case field == "eth_dst":
		return "set Ethernet destination " + value
	case field == "eth_src":
		return "set Ethernet source " + value
	case field == "tun_dst", field == "tun_ipv6_dst":
		return "set tunnel destination " + value
	}
	return field + " := " + value
}

func segment(s openflow.Segment) string {
	switch {
	case s&openflow.SizeChecked != 0:
		return "its size is compared with the MTU of the destination"
	case s == openflow.VLANPresent:
		return "untagged on the underlay"
	}
	return fmt.Sprintf("VLAN %d of the underlay", s.VLAN())
}

func datapath(actions string) string {
	switch {
	case actions == "drop":
		return "the datapath drops it"
	case shown.MatchString(actions):
		return "the datapath drops it, and sends it to the agent, within the rate limit"
	case byHash.MatchString(actions):
		return "the datapath chooses the endpoint by a hash of each connection: this part of the trace ends here"
	case recirculated.MatchString(actions):
		return "after conntrack:"
	}
	return "datapath actions: " + actions
}

// portName takes a port as ovs-appctl prints it: quoted if necessary.
func portName(port string, names map[string]string) string {
	port = strings.Trim(port, `"`)
	if n, known := names[port]; known {
		return n
	}
	return "port " + port
}

// renamePort replaces the port after in_port= with its known name.
func renamePort(match string, names map[string]string) string {
	fields := strings.Split(match, ",")
	for i, f := range fields {
		if port, ok := strings.CutPrefix(f, "in_port="); ok {
			if n, known := names[strings.Trim(port, `"`)]; known {
				fields[i] = "from " + n
			}
		}
	}
	return strings.Join(fields, ", ")
}

// Dropped reports whether the packet of a trace is dropped, and at most sent to the agent's log.
func Dropped(trace string) bool {
	trace = strings.TrimSpace(trace)
	_, actions, _ := strings.Cut(trace[strings.LastIndex(trace, "\n")+1:], "Datapath actions: ")
	return actions == "drop" || shown.MatchString(actions)
}

// DeniedIn returns the name of the table in which policies dropped the packet of a trace; empty if they did not.
func DeniedIn(trace string) string {
	if !Dropped(trace) {
		return ""
	}
	last, cookie := "", ""
	for line := range strings.Lines(trace) {
		line = strings.TrimRight(line, "\n")
		if m := hit.FindStringSubmatch(line); m != nil {
			last, cookie = judge(last, m[1]), m[4]
		} else if m := noMatch.FindStringSubmatch(line); m != nil {
			last, cookie = judge(last, m[1]), ""
		}
	}
	table, _ := strconv.ParseUint(last, 10, 8)
	of, _ := strconv.ParseUint(cookie, 0, 64) // 0 for none
	if _, _, policies := policing.Describe(table); policies || openflow.KindOf(of).OfPolicies() {
		name, _, _ := strings.Cut(title(last), " ")
		return name
	}
	return ""
}

// judge returns the table that has denied a packet: not the one that drops what others deny.
func judge(before, now string) string {
	n, _ := strconv.ParseUint(now, 10, 8)
	if d := uint8(n); d == policing.Egress.Denied() || d == policing.Ingress.Denied() {
		return before
	}
	return now
}
