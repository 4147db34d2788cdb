package crash

import (
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/link"
)

// hostOrder is what the agent keeps in order beside pods, without what changes by itself.
func (c cluster) hostOrder(t *testing.T) (lines []string) {
	t.Helper()
	changing := regexp.MustCompile(`^\d+: |(valid_lft|expires) \S+( preferred_lft \S+)?| state \w+| tentative| linkdown| qlen \d+`)
	for _, cmd := range []string{
		"ip -o addr show dev fairlead-gw0", "ip -o link show dev fairlead-gw0", "ip route show proto 102",
		"ip -6 route show proto 102", "ip neigh show nud permanent dev fairlead-gw0",
		"iptables -w -t nat -S FAIRLEAD-POSTROUTING", "ip6tables -w -t nat -S FAIRLEAD-POSTROUTING",
		"iptables -w -S FAIRLEAD-FORWARD", "iptables -w -t nat -S POSTROUTING",
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

func (c cluster) output(t *testing.T, line string) (string, error) {
	t.Helper()
	argv := strings.Fields(line)
	cmd := exec.CommandContext(within(t, 20*time.Second), argv[0], argv[1:]...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := c.node.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", line, err, out.String())
	}
	return out.String(), err
}

// difference says which lines are missing and which are too many.
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
