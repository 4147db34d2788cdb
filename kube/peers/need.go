package peers

import (
	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/policy"
)

// maxNamespaces is how many namespaces are watched individually. If more are needed, all Pods of the cluster are
// watched: each watch costs the API server memory, even if nothing happens in it.
const maxNamespaces = 50

// needed are the namespaces whose Pods the policies that apply to Pods of this node can refer to.
type needed struct {
	// read are those whose Pods are read individually; all namespaces if everywhere is in it.
	read map[string]bool
	// strict are those that rules which deny or pass refer to; all namespaces if everywhere is in it. Without a Pod such a
	// rule matches less, so what was closed may be open; a rule that accepts then opens less.
	strict map[string]bool
}

func (n needed) add(namespace string, v policy.Verdict) {
	n.read[namespace] = true
	if v != policy.Accept {
		n.strict[namespace] = true
	}
}

// neededBy is what the policies of known need.
func neededBy(known map[feed.Key]any) needed {
	namespaces, local := map[string]policy.Namespace{}, map[string][]*policy.Pod{}
	for _, v := range known {
		switch o := v.(type) {
		case policy.Namespace:
			namespaces[o.Name] = o
		case *policy.Pod:
			if !o.HostNetwork {
				local[o.Namespace] = append(local[o.Namespace], o)
			}
		}
	}
	out := needed{read: map[string]bool{}, strict: map[string]bool{}}
	for _, v := range known {
		if p, is := v.(policy.Policy); is && applies(p, namespaces, local) {
			addPeers(out, p, namespaces)
		}
	}
	if out.read[everywhere] || len(out.read) > maxNamespaces {
		out.read = map[string]bool{everywhere: true}
	}
	return out
}

// applies reports whether p selects a Pod of this node.
func applies(p policy.Policy, namespaces map[string]policy.Namespace, local map[string][]*policy.Pod) bool {
	for name, pods := range local {
		if !has(p.Subject, name, namespaces) {
			continue
		}
		for _, pod := range pods {
			if p.Subject.Pods.Matches(pod.Labels) {
				return true
			}
		}
	}
	return false
}

// has reports whether s selects Pods of the namespace of that name. One that is not known has no label.
func has(s policy.Subjects, name string, namespaces map[string]policy.Namespace) bool {
	if s.Namespace != "" {
		return s.Namespace == name
	}
	return s.Namespaces.Matches(namespaces[name].Labels)
}

// addPeers adds the namespaces whose Pods the rules of p can refer to. A rule with a named port also refers to the Pods
// that have it, wherever its networks are.
func addPeers(to needed, p policy.Policy, namespaces map[string]policy.Namespace) {
	for d, rules := range p.Rules {
		for _, r := range rules {
			if policy.Direction(d) == policy.Egress && len(r.NamedPorts) > 0 && (r.AnyPeer || len(r.Networks) > 0) {
				to.add(everywhere, r.Verdict)
			}
			for _, s := range r.Pods {
				addNamespaces(to, s, r.Verdict, namespaces)
			}
		}
	}
}

func addNamespaces(to needed, s policy.Subjects, v policy.Verdict, namespaces map[string]policy.Namespace) {
	switch {
	case s.Namespace != "":
		to.add(s.Namespace, v)
	case s.Namespaces.Everything():
		to.add(everywhere, v)
	default:
		for name := range namespaces {
			if has(s, name, namespaces) {
				to.add(name, v)
			}
		}
	}
}
