// Package traces reads all state of a node that Fairlead may change, so that a test can compare the node before the
// installation and after the uninstallation.
package traces

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/netstate"
)

// Node is the state of a node at one moment: its network, and lines for everything else.
type Node struct {
	network netstate.Node
	lines   []string
}

// script prints what is not in netstate.Node. Files that kubelet and the runtime write continuously are left out.
const script = `
find /opt/cni /etc/cni /var/lib/fairlead /run/fairlead /sys/fs/bpf \
	-path /var/lib/fairlead/allocations -prune -o -type f -exec sha256sum {} + 2>/dev/null
find /opt/cni /etc/cni -printf '%p %M\n'
find /run /var/lib /var/log -maxdepth 1 '(' -name '*fairlead*' -o -name '*openvswitch*' ')' ! -empty
for f in iptables ip6tables; do $f-save | sed "s/^/$f /"; done | grep -E -- '-A|FAIRLEAD'
ls /run/netns | grep fairlead
nft list tables | grep -E 'netdev|fairlead'
ovs-vsctl -t 3 --no-wait list-br; ovs-vsctl -t 3 --no-wait get Open_vSwitch . other_config external_ids
tc filter show dev eth0 ingress; tc filter show dev eth0 egress
true`

// Read reads a node whose NIC is eth0. What Fairlead leaves behind is excluded: enabled forwarding, and empty
// directories below /run, which are mount points of its pods. So are lines that contain one of ignored.
func Read(ctx context.Context, h host.Host, ignored ...string) (n Node, err error) {
	skip := func(l string) bool {
		return slices.ContainsFunc(ignored, func(s string) bool { return strings.Contains(l, s) })
	}
	if err := h.Do(func() (err error) { n.network, err = netstate.Read(); return err }); err != nil {
		return Node{}, err
	}
	n.network.Lines = slices.DeleteFunc(n.network.Lines, func(l string) bool {
		return strings.Contains(l, "forwarding ") || skip(l)
	})
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	var out []byte
	if err := h.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err }); err != nil {
		return Node{}, fmt.Errorf("reading what is on %s: %w\n%s", h.Name, err, out)
	}
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "database connection failed") && !skip(line) {
			n.lines = append(n.lines, strings.TrimSpace(line))
		}
	}
	return n, nil
}

// Differences are a line for each difference: "- ..." before, "+ ..." after.
func (n Node) Differences(after Node) []string {
	d := n.network.Differences(after.network)
	for _, l := range n.lines {
		if !slices.Contains(after.lines, l) {
			d = append(d, "- "+l)
		}
	}
	for _, l := range after.lines {
		if !slices.Contains(n.lines, l) {
			d = append(d, "+ "+l)
		}
	}
	return d
}
