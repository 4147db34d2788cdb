package nodestate

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Reference is the source of a node's expected flows: those without pods, and those that one pod adds, with
// placeholders for what is specific to the pod.
type Reference struct {
	base   []string
	perPod []string
}

// NewReference reads a node without pods and the same node with one.
func NewReference(empty, withOne State, pod Pod) (Reference, error) {
	if wrong := (Reference{base: empty.Flows}).Differences(empty, nil); len(wrong) > 0 {
		return Reference{}, fmt.Errorf("the node is not empty: %s", strings.Join(wrong, "; "))
	}
	r := Reference{base: empty.Flows}
	for _, f := range withOne.Flows {
		if !slices.Contains(empty.Flows, f) {
			r.perPod = append(r.perPod, generalize(f, pod, withOne.Ports[pod.HostIf()]))
		}
	}
	if len(r.perPod) < 4 {
		return r, fmt.Errorf("a pod adds only %d flows: %q", len(r.perPod), r.perPod)
	}
	if wrong := r.Differences(withOne, []Pod{pod}); len(wrong) > 0 {
		return r, fmt.Errorf("a node with one pod: %s", strings.Join(wrong, "; "))
	}
	return r, nil
}

// own are the texts in flows that are specific to one pod, each with its placeholder.
func own(p Pod, port int) [][2]string {
	texts := [][2]string{
		{"in_port=" + strconv.Itoa(port), "in_port={port}"}, {"output:" + strconv.Itoa(port), "output:{port}"},
		{p.MAC.String(), "{mac}"}, {p.MAC.LinkLocal().String(), "{link-local}"},
	}
	for i, ip := range p.IPs {
		texts = append(texts, [2]string{ip.String(), fmt.Sprintf("{ip%d}", i)})
	}
	return texts
}

func generalize(flow string, p Pod, port int) string {
	for _, t := range own(p, port) {
		flow = regexp.MustCompile(`\b`+regexp.QuoteMeta(t[0])+`\b`).ReplaceAllLiteralString(flow, t[1])
	}
	return flow
}

func specialize(flow string, p Pod, port int) string {
	for _, t := range own(p, port) {
		flow = strings.ReplaceAll(flow, t[1], t[0])
	}
	return flow
}

// Differences lists what the node has beyond what these pods need, and what is missing. An empty list means that each
// pod has exactly one port, one veth, one lease for each address and one set of flows, and that nothing of any other
// pod is left.
func (r Reference) Differences(s State, pods []Pod) []string {
	var hostIfs, netns, leases []string
	flows := slices.Clone(r.base)
	for _, p := range pods {
		hostIfs, netns = append(hostIfs, p.HostIf()), append(netns, p.Netns)
		for _, ip := range p.IPs {
			leases = append(leases, ip.String()+" of "+p.ContainerID)
		}
		for _, f := range r.perPod {
			flows = append(flows, specialize(f, p, s.Ports[p.HostIf()]))
		}
	}
	var leased []string
	for addr, owner := range s.Leases {
		leased = append(leased, addr+" of "+owner)
	}
	wrong := compare("lease", leased, leases)
	wrong = append(wrong, compare("port", slices.Collect(maps.Keys(s.Ports)), hostIfs)...)
	wrong = append(wrong, compare("veth", s.Veths, hostIfs)...)
	wrong = append(wrong, compare("network namespace", s.Netns, netns)...)
	return append(wrong, compare("flow", s.Flows, flows)...)
}

// compare counts repeated names.
func compare(what string, have, want []string) []string {
	count := map[string]int{}
	for _, h := range have {
		count[h]++
	}
	for _, w := range want {
		count[w]--
	}
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(count)) {
		switch n := count[name]; {
		case n > 0:
			wrong = append(wrong, fmt.Sprintf("%s too many: %s", what, name))
		case n < 0:
			wrong = append(wrong, fmt.Sprintf("%s missing: %s", what, name))
		}
	}
	return wrong
}
