package crash

import (
	"fmt"
	"maps"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

// otherNode is the complete state of node2, whose pods stay.
func (c cluster) otherNode(t *testing.T) []string {
	t.Helper()
	var err error
	c.node, err = c.Host("node2")
	must(t, err)
	s := c.state(t)
	return slices.Concat(c.hostOrder(t), s.Flows, s.Veths, s.Netns, []string{fmt.Sprint(s.Leases), fmt.Sprint(s.Ports)})
}

// hostOrder is what the agent reconciles besides pods, without what changes by itself.
func (c cluster) hostOrder(t *testing.T) (lines []string) {
	t.Helper()
	changing := regexp.MustCompile(`^\d+: |(valid_lft|expires) \S+( preferred_lft \S+)?| state \w+| tentative| linkdown| qlen \d+`)
	for _, cmd := range []string{
		"ip -o addr show dev fairlead-gw0", "ip -o link show dev fairlead-gw0", "ip route show proto 102",
		"ip -6 route show proto 102", "ip neigh show nud permanent dev fairlead-gw0",
		"iptables -w -t nat -S FAIRLEAD-POSTROUTING", "ip6tables -w -t nat -S FAIRLEAD-POSTROUTING",
		"iptables -w -S FAIRLEAD-FORWARD", "iptables -w -t mangle -S FAIRLEAD-FORWARD", "iptables -w -t nat -S POSTROUTING",
	} {
		out, err := c.output(t, cmd)
		if err != nil {
			out = err.Error()
		}
		for line := range strings.Lines(out) {
			lines = append(lines, strings.TrimSpace(changing.ReplaceAllString(line, "")))
		}
	}
	slices.Sort(lines)
	return lines
}

// downVeths are the pods' interfaces on the node that are not up.
func (c cluster) downVeths(t *testing.T) (names []string) {
	t.Helper()
	for line := range strings.Lines(c.exec(t, "ip", "-o", "link", "show", "group", fmt.Sprint(link.Group))) {
		if !strings.Contains(line, ",UP") {
			names = append(names, "not up: "+line)
		}
	}
	return names
}

// wrongAddresses lists the pods, of all nodes, whose addresses differ from the runner's record and the API.
func (c cluster) wrongAddresses(t *testing.T) (wrong []string) {
	t.Helper()
	reported := map[string][]string{}
	if c.api != nil {
		for _, p := range c.api.pods(t) {
			for _, ip := range p.Status.PodIPs {
				reported[p.Namespace+"/"+p.Name] = append(reported[p.Namespace+"/"+p.Name], ip.IP)
			}
		}
	}
	records, err := c.Records().List()
	must(t, err)
	for _, rec := range records {
		h, err := c.Host(rec.Node)
		must(t, err)
		var have []string
		err = h.DoNet(rec.Netns, func() (err error) { have, err = globalAddresses("eth0"); return err })
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", rec.Pod(), err))
		}
		wrong = append(wrong, difference("address of "+rec.Pod(), have, rec.IPs)...)
		if c.api != nil {
			wrong = append(wrong, difference("podIP of "+rec.Pod(), reported[rec.Pod()], rec.IPs)...)
		}
	}
	return wrong
}

func globalAddresses(dev string) (out []string, err error) {
	i, err := net.InterfaceByName(dev)
	if err != nil {
		return nil, err
	}
	addrs, err := i.Addrs()
	for _, a := range addrs {
		if p, ok := a.(*net.IPNet); ok && p.IP.IsGlobalUnicast() {
			out = append(out, p.IP.String())
		}
	}
	return out, err
}

func (c cluster) output(t *testing.T, line string) (string, error) {
	t.Helper()
	argv := strings.Fields(line)
	cmd := exec.CommandContext(labtest.Within(t, time.Minute), argv[0], argv[1:]...)
	out := host.Collect(cmd, argv[0])
	err := c.node.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", line, err, out.Text(err))
	}
	return out.Text(err), err
}

// difference lists missing and unexpected lines.
func difference(what string, have, want []string) (wrong []string) {
	count := map[string]int{}
	for _, l := range have {
		count[l]++
	}
	for _, l := range want {
		count[l]--
	}
	for _, l := range slices.Sorted(maps.Keys(count)) {
		if count[l] != 0 {
			wrong = append(wrong, fmt.Sprintf("%s: %+d times: %s", what, count[l], l))
		}
	}
	return wrong
}
