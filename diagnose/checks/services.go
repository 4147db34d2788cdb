package checks

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/openflow/clusterip"
)

// services examines Services in the API and, on a node, what they need there.
func (o Options) services(ctx context.Context) ([]report.Finding, error) {
	s, err := cluster.ReadServices(ctx, o.Client)
	if err != nil {
		return nil, err
	}
	found := endpointsNowhere(s)
	if o.Node == nil {
		return append(found, shorterAffinity(s)...), nil
	}
	if o.Node.Config.Services == api.ServicesOVS {
		found = append(found, shorterAffinity(s)...)
	}
	found = append(found, outsideRanges(s, o.Node.Config)...)
	found = append(found, withoutProxy(s, o.Node.Config, kubeProxyRules(ctx))...)
	return append(found, o.Node.conntrack(ctx)...), nil
}

// endpointsNowhere finds ready endpoints of Services on nodes that do not exist.
func endpointsNowhere(s cluster.Services) []report.Finding {
	var about, evidence, nodes []string
	for _, slice := range s.Slices {
		for _, e := range slice.Endpoints {
			if slice.Service == "" || !e.Ready || e.Node == "" || s.Nodes[e.Node] {
				continue
			}
			about = append(about, slice.Namespace+"/"+slice.Service)
			evidence = append(evidence, fmt.Sprintf("%s of %s/%s, on node %s (EndpointSlice %s)", e.Addr, slice.Namespace,
				slice.Service, e.Node, slice.Name))
			nodes = append(nodes, e.Node)
		}
	}
	if len(about) == 0 {
		return nil
	}
	slices.Sort(about)
	slices.Sort(nodes)
	return []report.Finding{{Check: CheckServices, Kind: "endpoints-nowhere", Severity: report.Warning,
		About: slices.Compact(about), Evidence: []string{report.Some(evidence)},
		Cause: fmt.Sprintf("%s on nodes that do not exist: connections to them are lost",
			report.Count(len(evidence), "1 endpoint of a Service is", "%d endpoints of Services are")),
		Remedies: []report.Remedy{{Text: "Delete the pods of nodes that are gone: their endpoints go with them",
			Commands: []string{"kubectl get pods -A -o wide --field-selector spec.nodeName=" + nodes[0]}},
			{Text: "Correct EndpointSlices that something other than Kubernetes writes"}}}}
}

// shorterAffinity finds Services whose session affinity Open vSwitch cuts short. Off a node it is not known whether it
// does: services: ovs is the default.
func shorterAffinity(s cluster.Services) []report.Finding {
	var about, evidence []string
	for _, one := range s.All {
		if one.Affinity > clusterip.MostAffinity && len(one.ClusterIPs) > 0 {
			about = append(about, one.String())
			evidence = append(evidence, fmt.Sprintf("%s asks for %d s", one, one.Affinity/time.Second))
		}
	}
	if len(about) == 0 {
		return nil
	}
	most := clusterip.MostAffinity / time.Second
	return []report.Finding{{Check: CheckServices, Kind: "affinity-cut", Severity: report.Warning, About: about,
		Cause: fmt.Sprintf("Open vSwitch, which translates with services: ovs, has no timeouts of more than %d s: a pod that opens no "+
			"connection for that long may get another endpoint of %s, which %s for a longer sessionAffinity", most,
			report.Count(len(about), about[0], "%d Services"), report.Count(len(about), "asks", "ask")),
		Evidence: []string{report.Some(evidence)},
		Remedies: []report.Remedy{{Text: fmt.Sprintf("Set sessionAffinityConfig.clientIP.timeoutSeconds to at most %d", most),
			Commands: []string{affinityPatch(about[0], int(most))}},
			{Text: "Leave ClusterIPs to kube-proxy: services: host in the agents' config",
				Beware: []string{"endpoints then see the gateway's or the node's address"}}}}}
}

func affinityPatch(service string, seconds int) string {
	namespace, name, _ := strings.Cut(service, "/")
	return fmt.Sprintf(`kubectl -n %s patch service %s -p '{"spec":{"sessionAffinityConfig":{"clientIP":{"timeoutSeconds":%d}}}}'`,
		namespace, name, seconds)
}

// outsideRanges finds ClusterIPs that Open vSwitch does not translate, as they are in no range that the agent uses.
func outsideRanges(s cluster.Services, cfg api.AgentConfig) []report.Finding {
	if cfg.Services != api.ServicesOVS {
		return nil
	}
	ranges := slices.Concat(s.Ranges, cfg.ServiceCIDRs())
	var about []string
	for _, one := range s.All {
		for _, ip := range one.ClusterIPs {
			if !slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ip) }) {
				about = append(about, fmt.Sprintf("%s (%s)", one, ip))
			}
		}
	}
	if len(about) == 0 {
		return nil
	}
	return []report.Finding{{Check: CheckServices, Kind: "outside-ranges", Severity: report.Warning, About: about,
		Cause: fmt.Sprintf("Open vSwitch does not translate %s: no ServiceCIDR object and no serviceCIDR in the agent's config contains "+
			"them. kube-proxy does, if it runs, and endpoints then see the gateway's address",
			report.Count(len(about), "1 ClusterIP", "%d ClusterIPs")),
		Evidence: []string{report.Some(about), "ranges: " + report.Join(ranges, ", ")},
		Remedies: []report.Remedy{{Text: "Set serviceCIDR and serviceCIDRv6 in the agents' config to kube-apiserver's " +
			"--service-cluster-ip-range"}}}}
}

// withoutProxy is about what only kube-proxy does, on a node without it.
func withoutProxy(s cluster.Services, cfg api.AgentConfig, rules bool) []report.Finding {
	if rules {
		return nil
	}
	f := report.Finding{Check: CheckServices, Kind: "no-kube-proxy", Severity: report.Failing,
		Evidence: []string{"this node has neither the nftables table kube-proxy nor the iptables chain KUBE-SERVICES"},
		Remedies: []report.Remedy{{Text: "Start kube-proxy on this node, and find out why it does not run",
			Commands: []string{"kubectl -n kube-system get pods -o wide -l k8s-app=kube-proxy"}}}}
	if cfg.Services != api.ServicesOVS {
		f.Cause = "kube-proxy has no rules on this node, and services: host leaves ClusterIPs to it: pods on this node reach no Service"
		f.Remedies = append(f.Remedies, report.Remedy{Text: "Or let Open vSwitch translate ClusterIPs for pods: services: ovs in the " +
			"agents' config"})
		return []report.Finding{f}
	}
	var needing []string
	for _, one := range s.All {
		if len(one.Entrances) > 0 {
			needing = append(needing, fmt.Sprintf("%s (%s)", one, strings.Join(one.Entrances, ", ")))
		}
	}
	if len(needing) == 0 {
		return nil
	}
	f.Severity, f.About = report.Warning, needing
	f.Cause = fmt.Sprintf("kube-proxy has no rules on this node, and %s it: Open vSwitch translates ClusterIPs only, and only for pods",
		report.Count(len(needing), "1 Service needs", "%d Services need"))
	f.Evidence = append(f.Evidence, report.Some(needing))
	return []report.Finding{f}
}

// kubeProxyRules reports whether this node has rules of kube-proxy, in any of its modes. It returns true as well if
// that is not known, as without the program nft.
func kubeProxyRules(ctx context.Context) bool {
	known := false
	legacy, _ := os.ReadFile("/proc/thread-self/net/ip_tables_names") // iptables-legacy -t nat would create the table
	for _, look := range [][]string{{"nft", "list", "tables"}, {"iptables", "-w", "5", "-t", "nat", "-S", "PREROUTING"},
		{"iptables-legacy", "-w", "5", "-t", "nat", "-S", "PREROUTING"}, {"ip6tables", "-w", "5", "-t", "nat", "-S", "PREROUTING"}} {
		if look[0] == "iptables-legacy" && !strings.Contains(string(legacy), "nat") {
			continue
		}
		out, err := exec.CommandContext(ctx, look[0], look[1:]...).Output()
		known = known || err == nil && look[0] == "nft"
		if strings.Contains(string(out), " kube-proxy") || strings.Contains(string(out), "KUBE-SERVICES") {
			return true
		}
	}
	return !known
}

// fullFrom is the share of used conntrack entries from which it is reported as full.
const fullFrom = 0.8

// conntrack compares how many connections there are with how many there may be: in the kernel's conntrack, and in the
// userspace datapath's. What cannot be read counts as absent.
func (n *NodeProbe) conntrack(ctx context.Context) (out []report.Finding) {
	kernel := func(name string) string {
		text, _ := os.ReadFile(filepath.Join("/proc/sys/net/netfilter", name))
		return string(text)
	}
	out = full("the kernel's conntrack", kernel("nf_conntrack_count"), kernel("nf_conntrack_max"),
		"sysctl -w net.netfilter.nf_conntrack_max=")
	if n.Config.OVSDatapathType == api.DatapathNetdev {
		ask := func(command string) string {
			text, _ := vswitchd.Appctl(ctx, n.Config.OVSRunDir, command)
			return text
		}
		out = append(out, full("the userspace datapath's conntrack", ask("dpctl/ct-get-nconns"), ask("dpctl/ct-get-maxconns"),
			"ovs-appctl dpctl/ct-set-maxconns ")...)
	}
	return out
}

func full(what, count, most, set string) []report.Finding {
	has, err := strconv.Atoi(strings.TrimSpace(count))
	limit, merr := strconv.Atoi(strings.TrimSpace(most))
	if err != nil || merr != nil || limit == 0 || float64(has) < fullFrom*float64(limit) {
		return nil
	}
	return []report.Finding{{Check: CheckServices, Kind: "conntrack-full", Severity: report.Warning, About: []string{what},
		Cause: fmt.Sprintf("%s has %d of at most %d entries: when it is full, new connections are dropped", what, has, limit),
		Remedies: []report.Remedy{{Text: "Allow more entries; each takes about 400 bytes", Commands: []string{
			set + strconv.Itoa(2*limit) + "   # until the next boot"}},
			{Text: "Find out which pod opens so many connections, with ovs-appctl dpctl/dump-conntrack"}}}}
}
