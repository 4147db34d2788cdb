package podcidr

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/ipam/blocks"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// mostPodsMask is the longest node mask that is worth telling: 13 pods.
const mostPodsMask = 28

// mostBlocks is how many blocks are looked at one by one: all that the largest
// difference of masks gives.
const mostBlocks = 1 << MaxMaskDiff

// serves tries settings of the allocator: it starts with the nodes, and the next
// need podCIDRs exist and overlap nothing.
func (c *cluster) serves(ranges []Range, nodes []inputs.Node, need int) error {
	grids, err := start(ranges, c.LeftOut, nodes)
	if err != nil {
		return err
	}
	for _, g := range grids {
		if g.Free() < uint64(need) {
			return fmt.Errorf("%s cut into /%d leaves %d free", g.Cluster, g.Mask, g.Free())
		}
		for _, p := range g.Next(need) {
			if what := c.clash(p); what != "" {
				return fmt.Errorf("the podCIDR %s holds or overlaps %s", p, what)
			}
		}
	}
	return nil
}

// servesInAnyOrder is serves for an allocator that runs: which of the free blocks
// it gives next is not known.
func (c *cluster) servesInAnyOrder(ranges []Range, nodes []inputs.Node, need int) error {
	grids, err := start(ranges, c.LeftOut, nodes)
	if err != nil {
		return err
	}
	for _, g := range grids {
		if p, what := c.unclean(g); what != "" {
			return fmt.Errorf("the free podCIDR %s holds or overlaps %s", p, what)
		}
	}
	return c.serves(ranges, nodes, need)
}

// taboo is an address or network that no podCIDR may touch.
type taboo struct {
	netip.Prefix
	what string
}

// taboos are the Service CIDRs, the underlay and the addresses of nodes.
func (c *cluster) taboos() []taboo {
	var out []taboo
	for _, s := range c.Services {
		out = append(out, taboo{s, "the Service CIDR " + s.String()})
	}
	for _, u := range c.Underlay {
		out = append(out, taboo{u, "the network " + u.String() + " of a node"})
	}
	for _, n := range c.nodes {
		for _, a := range n.Addresses {
			out = append(out, taboo{netip.PrefixFrom(a, a.BitLen()), fmt.Sprintf("%s, the address of node %s", a, n.Name)})
		}
	}
	return out
}

// clash names the first taboo that p touches; empty: none that is known.
func (c *cluster) clash(p netip.Prefix) string {
	for _, t := range c.taboo {
		if p.Overlaps(t.Prefix) {
			return t.what
		}
	}
	return ""
}

// unclean finds a free block that touches a taboo; what is empty if none does.
func (c *cluster) unclean(g *blocks.Grid) (block netip.Prefix, what string) {
	for _, t := range c.taboo {
		if !t.Overlaps(g.Cluster) {
			continue
		}
		more := g.Clone()
		if more.Take(t.Prefix) != nil || more.Free() == g.Free() {
			continue
		}
		for _, p := range g.Next(mostBlocks) {
			if p.Overlaps(t.Prefix) {
				return p, t.what
			}
		}
	}
	return netip.Prefix{}, ""
}

// remedyRange looks for the smallest wider cluster CIDR that serves all who wait.
func (c *cluster) remedyRange(d *Diagnosis) {
	ranges, err := c.widen(c.nodes, len(c.waiting))
	if err != nil {
		d.NoHelp = append(d.NoHelp, "No wider --cluster-cidr is possible: "+err.Error())
		return
	}
	d.Remedies = append(d.Remedies, c.settings(fmt.Sprintf("Widen --cluster-cidr to %s (%s)",
		clusterCIDRs(ranges), capacity(ranges)), ranges))
}

// widen shortens each cluster CIDR as far as needed to serve need more nodes. The
// error says what is in the way.
func (c *cluster) widen(nodes []inputs.Node, need int) ([]Range, error) {
	return c.widenUntil(func(ranges []Range, i int) error { return c.serves(ranges, only(nodes, i), need) },
		func(ranges []Range) error { return c.serves(ranges, nodes, need) })
}

// widenUntil shortens each cluster CIDR until good accepts it. all has the last
// word.
func (c *cluster) widenUntil(good func(one []Range, i int) error, all func([]Range) error) ([]Range, error) {
	out := slices.Clone(c.Ranges)
	for i := range out {
		for {
			err := good(out[i:i+1], i)
			if err == nil {
				break
			}
			if out[i], err = c.wider(out[i], err); err != nil {
				return nil, err
			}
		}
	}
	return out, all(out)
}

// wider is r with a cluster CIDR twice as wide. why says what r lacks.
func (c *cluster) wider(r Range, why error) (Range, error) {
	w := Range{Cluster: netip.PrefixFrom(r.Cluster.Addr(), r.Cluster.Bits()-1).Masked(), Mask: r.Mask}
	switch what := c.clash(w.Cluster); {
	case !w.Cluster.IsValid() || w.Cluster.Bits() == 0:
		return r, why
	case w.Mask-w.Cluster.Bits() > MaxMaskDiff:
		return r, fmt.Errorf("%w, and a /%d cannot be cut from a cluster CIDR wider than %s (at most %d bits)",
			why, w.Mask, r.Cluster, MaxMaskDiff)
	case what != "":
		return r, fmt.Errorf("%w, and %s overlaps %s", why, w.Cluster, what)
	case !private(w.Cluster):
		return r, fmt.Errorf("%w, and %s is not private address space (RFC 1918, 4193, 6598)", why, w.Cluster)
	}
	return w, nil
}

// private reports whether all of p is for private use: RFC 1918, RFC 6598 (shared
// by carriers) and RFC 4193.
func private(p netip.Prefix) bool {
	for _, s := range []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"} {
		if all := netip.MustParsePrefix(s); all.Bits() <= p.Bits() && all.Overlaps(p) {
			return true
		}
	}
	return false
}

// only are the nodes with their podCIDR number i alone.
func only(nodes []inputs.Node, i int) []inputs.Node {
	var out []inputs.Node
	for _, n := range nodes {
		if i < len(n.PodCIDRs) {
			n.PodCIDRs = n.PodCIDRs[i : i+1]
			out = append(out, n)
		}
	}
	return out
}

// remedyMask looks for the shortest longer node mask that serves all who wait. It
// says so when none does: it is what many try first.
func (c *cluster) remedyMask(d *Diagnosis) {
	masks := slices.Clone(c.Ranges)
	for i, r := range masks {
		most := mostMask(r)
		for r.Mask <= most && c.serves([]Range{r}, only(c.nodes, i), len(c.waiting)) != nil {
			r.Mask++
		}
		if r.Mask > most {
			d.NoHelp = append(d.NoHelp, "A longer node mask does not help: "+c.fills(i))
			return
		}
		masks[i] = r
	}
	if c.serves(masks, c.nodes, len(c.waiting)) != nil {
		return
	}
	flags := strings.Join(maskFlags(masks), " ")
	remedy := c.settings(fmt.Sprintf("Lengthen the node mask for new nodes, %s (%s)", flags, roomFor(masks)), masks)
	remedy.Beware = append(remedy.Beware, "Existing nodes keep their podCIDR")
	d.Remedies = append(d.Remedies, remedy)
}

// mostMask is the longest node mask that is told of a range.
func mostMask(r Range) int {
	if r.Cluster.Addr().Is4() {
		return min(r.Cluster.Bits()+MaxMaskDiff, mostPodsMask)
	}
	return min(r.Cluster.Bits()+MaxMaskDiff, 112)
}

// fills says what takes the range number i.
func (c *cluster) fills(i int) string {
	bits, alike, inside := -1, true, 0
	for _, n := range only(c.nodes, i) {
		if n.PodCIDRs[0].Overlaps(c.Ranges[i].Cluster) {
			inside++
			alike = alike && (bits < 0 || bits == n.PodCIDRs[0].Bits())
			bits = n.PodCIDRs[0].Bits()
		}
	}
	switch {
	case inside == 0:
		return "no podCIDR of " + c.Ranges[i].Cluster.String() + " is free"
	case alike && inside == 1:
		return fmt.Sprintf("one /%d fills the range", bits)
	case alike:
		return fmt.Sprintf("the %s /%d fill the range", inWords(inside), bits)
	default:
		return fmt.Sprintf("the podCIDRs of %d nodes fill the range", inside)
	}
}

func inWords(n int) string {
	words := []string{"no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"}
	if n < len(words) {
		return words[n]
	}
	return fmt.Sprint(n)
}

// settings is a remedy of other settings for kube-controller-manager.
func (c *cluster) settings(text string, ranges []Range) Remedy {
	r := Remedy{Text: text, Ranges: ranges}
	flags := append([]string{"--allocate-node-cidrs=true", "--cluster-cidr=" + clusterCIDRs(ranges)}, maskFlags(ranges)...)
	if len(c.LeftOut) == 0 && len(c.Services) > 0 && !overlap(ranges, c.Services) { // as kubeadm does, for what is to come
		r.LeftOut = c.Services
		flags = append(flags, "--service-cluster-ip-range="+join(c.Services))
	}
	r.Commands = c.setFlags(flags...)
	r.Beware = append(r.Beware, "kube-proxy's --cluster-cidr (clusterCIDR in ConfigMap kube-system/kube-proxy) and other configuration with the cluster CIDR, such as firewalls, must be changed as well")
	if c.Kubeadm {
		r.Commands = append(r.Commands, "kubectl -n kube-system edit configmap kubeadm-config   # networking.podSubnet: "+
			clusterCIDRs(ranges)+", or the next kubeadm upgrade reverts it")
	}
	if len(c.Services) == 0 {
		r.Beware = append(r.Beware, "The Service CIDR could not be read: make sure that the cluster CIDR does not overlap it")
	}
	if len(c.Underlay) == 0 {
		r.Beware = append(r.Beware, "The cluster CIDR must not overlap the nodes' own network: their addresses were checked, but their subnets are unknown")
	}
	return r
}

func overlap(ranges []Range, services []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r Range) bool {
		return slices.ContainsFunc(services, r.Cluster.Overlaps)
	})
}

// setFlags tells where and how flags of kube-controller-manager are set.
func (c *cluster) setFlags(flags ...string) []string {
	where := "# set these flags of kube-controller-manager, wherever it is started, and restart it:"
	if c.Manifest != "" {
		where = "# in " + c.Manifest + " on each control-plane node (kubelet restarts it by itself):"
	}
	return []string{where, "#   " + strings.Join(flags, " ")}
}

func (c *cluster) restart() Remedy {
	r := Remedy{Text: "Restart kube-controller-manager", Restart: true}
	if c.Manifest == "" {
		r.Commands = append(r.Commands, "# restart kube-controller-manager, wherever it is started")
		return r
	}
	r.Commands = append(r.Commands, "# on each control-plane node: move "+c.Manifest+" away, wait 20 seconds, move it back")
	return r
}

// remedyStart helps a kube-controller-manager that does not run.
func (c *cluster) remedyStart(d *Diagnosis) {
	if len(c.Ranges) > 0 {
		d.Evidence = append(d.Evidence, c.source())
		if _, err := start(c.Ranges, c.LeftOut, c.nodes); err != nil {
			d.Cause += fmt.Sprintf("; it cannot start with --cluster-cidr=%s and these Nodes: %v", clusterCIDRs(c.Ranges), err)
			c.remedyRange(d)
			return
		}
	}
	d.NoHelp = append(d.NoHelp, "Start it; the reason why it stopped is in its log (kubectl -n kube-system logs --previous, or crictl "+
		"on the control-plane node)")
}

// remedyAllocate turns the allocator on, with the ranges that are set, kubeadm's,
// or else ones that are free.
func (c *cluster) remedyAllocate(d *Diagnosis) {
	d.Evidence = append(d.Evidence, c.source())
	for _, ranges := range c.candidates() {
		if c.serves(ranges, c.nodes, len(c.waiting)) != nil {
			continue
		}
		r := c.settings("Start kube-controller-manager with --allocate-node-cidrs=true --cluster-cidr="+clusterCIDRs(ranges)+
			" ("+capacity(ranges)+")", ranges)
		if d.Kind == NoPodNetworkCIDR {
			r.Beware = append(r.Beware, "An empty cluster can also be recreated: kubeadm reset, then kubeadm init "+
				"--pod-network-cidr="+clusterCIDRs(ranges))
		}
		d.Remedies = append(d.Remedies, r)
		return
	}
	d.NoHelp = append(d.NoHelp, "No cluster CIDR was found that contains the podCIDRs of the Nodes, serves the waiting ones and overlaps nothing: resolve the conflicts of podCIDRs, Service CIDR and node addresses first (fairleadctl plan)")
}

// candidates are ranges to start the allocator with, best first: those it has,
// else one around the podCIDRs that exist, else some of the private ones
// (RFC 1918, RFC 4193), in the families of the Services.
func (c *cluster) candidates() [][]Range {
	if len(c.Ranges) > 0 {
		out := [][]Range{c.Ranges}
		if wider, err := c.widen(c.nodes, len(c.waiting)); err == nil {
			out = append(out, wider)
		}
		return out
	}
	if g := guess(c.having); g != nil {
		around := *c
		around.Ranges = g
		if wider, err := around.widen(c.nodes, len(c.waiting)+len(c.nodes)); err == nil {
			return [][]Range{wider}
		}
	}
	v4 := len(c.Services) == 0 || slices.ContainsFunc(c.Services, func(p netip.Prefix) bool { return p.Addr().Is4() })
	v6 := slices.ContainsFunc(c.Services, func(p netip.Prefix) bool { return p.Addr().Is6() })
	six := Range{Cluster: netip.MustParsePrefix("fd00:10:244::/48"), Mask: 64}
	if !v4 {
		return [][]Range{{six}}
	}
	var out [][]Range
	for _, p := range []string{"10.244.0.0/16", "10.128.0.0/14", "172.20.0.0/16", "192.168.0.0/16"} {
		ranges := []Range{{Cluster: netip.MustParsePrefix(p), Mask: 24}}
		if v6 {
			ranges = append(ranges, six)
			if c.Services[0].Addr().Is6() {
				slices.Reverse(ranges)
			}
		}
		out = append(out, ranges)
	}
	return out
}

// capacity says how many nodes ranges hold.
func capacity(ranges []Range) string {
	most := ^uint64(0)
	for _, r := range ranges {
		most = min(most, r.Blocks())
	}
	return count(int(most), "1 node", "%d nodes")
}

func clusterCIDRs(ranges []Range) string {
	var out []netip.Prefix
	for _, r := range ranges {
		out = append(out, r.Cluster.Masked())
	}
	return join(out)
}

// maskFlags are the flags of kube-controller-manager for the masks. With two
// families it refuses --node-cidr-mask-size, with one the others.
func maskFlags(ranges []Range) []string {
	if len(ranges) == 1 {
		return []string{fmt.Sprintf("--node-cidr-mask-size=%d", ranges[0].Mask)}
	}
	var out []string
	for _, r := range ranges {
		family := 4
		if r.Cluster.Addr().Is6() {
			family = 6
		}
		out = append(out, fmt.Sprintf("--node-cidr-mask-size-ipv%d=%d", family, r.Mask))
	}
	return out
}

// roomFor says how many pods a node of ranges holds: all addresses less network,
// gateway and, in IPv4, broadcast.
func roomFor(ranges []Range) string {
	var out []string
	for _, r := range ranges {
		if host := r.Cluster.Addr().BitLen() - r.Mask; host < 16 {
			out = append(out, fmt.Sprintf("at most %d pods on a node", 1<<host-3))
		}
	}
	if len(out) == 0 {
		return "more pods on a node than the limit"
	}
	return out[0]
}
