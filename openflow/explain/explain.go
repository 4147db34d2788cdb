// Package explain tells in words what Open vSwitch did with a packet. It reads
// the output of `ovs-appctl ofproto/trace --names` on Fairlead's bridge; the
// tables are those of package openflow.
package explain

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// tables are the names and the questions of the pipeline's tables.
var tables = map[string]struct{ name, question string }{
	"0": {"Classify", "source validation (anti-spoofing)"},
	"1": {"Resolve", "ARP and neighbour discovery"},
	"2": {"Service", "Services and policies"},
	"3": {"Forward", "routing to the destination"},
	"4": {"Output", "VLAN of the underlay"},
}

// hit is the first line of a table in a trace; noMatch the one of a table in
// which no flow matched.
var (
	hit     = regexp.MustCompile(`^ *(\d+)\. (?:(.*), )?priority (\d+)(?:, cookie (0x[0-9a-f]+))?$`)
	noMatch = regexp.MustCompile(`^ *(\d+)\. No match\.$`)
	setTo   = regexp.MustCompile(`^set_field:(.+)->(\w+)$`)
	nexts   = regexp.MustCompile(`^(?:goto_table|resubmit\(,(\d+)\)):?(\d+)?$`)
)

// Trace returns one sentence for each step of a trace. names gives ports a
// name that people know ("pod default/a" for "fl3f2…"); a port without one
// keeps its own.
func Trace(trace string, names map[string]string) []string {
	var out []string
	bridge, inTables := "", false // bridge is empty once its first flow is seen
	for line := range strings.Lines(trace) {
		line = strings.TrimRight(line, "\n")
		text := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(text, "bridge("):
			bridge = strings.TrimSuffix(strings.TrimPrefix(text, `bridge("`), `")`)
		case strings.HasPrefix(text, "Final flow:"):
			inTables = false
		case strings.HasPrefix(text, "Datapath actions:"):
			out = append(out, datapath(strings.TrimSpace(strings.TrimPrefix(text, "Datapath actions:"))))
		case text == "" || strings.HasPrefix(text, "---"):
		case bridge != "":
			// The packet may come or go on through another bridge.
			if inTables = hasOurCookie(line) || noMatch.MatchString(line); !inTables {
				out = append(out, "  through the bridge "+bridge+", which has no flows of Fairlead")
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

// hasOurCookie reports whether a line of a trace shows a flow of package
// openflow.
func hasOurCookie(line string) bool {
	m := hit.FindStringSubmatch(line)
	return m != nil && strings.HasPrefix(m[4], "0x666c")
}

func step(line, text string, names map[string]string) string {
	if m := noMatch.FindStringSubmatch(line); m != nil {
		return fmt.Sprintf("table %s %s no flow matches: the packet is dropped", m[1], title(m[1]))
	}
	if m := hit.FindStringSubmatch(line); m != nil {
		match := renamePort(m[2], names)
		if match == "" {
			match = "any packet (lowest priority)"
		}
		return fmt.Sprintf("table %s %s flow: %s", m[1], title(m[1]), match)
	}
	return "  " + action(text, names)
}

func title(table string) string {
	t, known := tables[table]
	if !known {
		return "(not one of Fairlead's tables):"
	}
	return fmt.Sprintf("%s (%s)", t.name, t.question)
}

// outputTo begins the line about a port by which the packet leaves: Leaves looks for it.
const outputTo = "output to "

func action(text string, names map[string]string) string {
	switch {
	case text == "drop":
		return "drop"
	case text == "dec_ttl":
		return "route: decrement TTL"
	case text == "pop_vlan":
		return "pop the VLAN tag"
	case strings.HasPrefix(text, "push_vlan:"):
		return "push a VLAN tag"
	case text == "IN_PORT":
		return "output to the ingress port"
	case strings.HasPrefix(text, "move:"):
		return "copy for the reply: " + strings.TrimPrefix(text, "move:")
	case strings.HasPrefix(text, "output:"):
		return outputTo + portName(strings.TrimPrefix(text, "output:"), names)
	case strings.HasPrefix(text, "->"), strings.HasPrefix(text, ">>"):
		return "note: " + strings.TrimSpace(strings.TrimLeft(text, "->"))
	}
	if m := nexts.FindStringSubmatch(text); m != nil {
		return "continue in table " + m[1] + m[2]
	}
	if m := setTo.FindStringSubmatch(text); m != nil {
		return set(m[1], m[2])
	}
	return text
}

// sources are the values of reg0 (package openflow, SetSource).
var sources = map[string]string{"0x1": "a pod", "0x2": "the host", "0x3": "the tunnel", "0x4": "a bridged pod",
	"0x5": "the underlay"}

// segment tells in words what reg1 holds (package openflow, Segment).
func segment(value string) string {
	n, err := strconv.ParseUint(value, 0, 16)
	if err != nil || n < vlanPresent {
		return "reg1 := " + value
	}
	if n == vlanPresent {
		return "record: untagged on the underlay"
	}
	return fmt.Sprintf("record: VLAN %d of the underlay", n-vlanPresent)
}

// vlanPresent is added to VLAN IDs in reg1 and in vlan_vid.
const vlanPresent = 0x1000

func set(value, field string) string {
	switch field {
	case "reg0":
		if s, known := sources[value]; known {
			return "record: source is " + s
		}
	case "reg1":
		return segment(value)
	case "vlan_vid":
		if n, err := strconv.ParseUint(value, 0, 16); err == nil && n >= vlanPresent {
			return fmt.Sprintf("set VLAN ID %d", n-vlanPresent)
		}
	case "eth_dst":
		return "set Ethernet destination " + value
	case "eth_src":
		return "set Ethernet source " + value
	case "tun_dst", "tun_ipv6_dst":
		return "set tunnel destination " + value
	}
	return field + " := " + value
}

func datapath(actions string) string {
	if actions == "drop" {
		return "the datapath drops it"
	}
	return "datapath actions: " + actions
}

// portName takes a port as ovs-appctl prints it: in quotes where it has to.
func portName(port string, names map[string]string) string {
	port = strings.Trim(port, `"`)
	if n, known := names[port]; known {
		return n
	}
	return "port " + port
}

// renamePort puts the known name of the port behind in_port=.
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
