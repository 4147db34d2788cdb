package inputs

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/fairlead-cni/fairlead/api"
)

// merge puts the objects of all files into one snapshot. An object that two
// files hold counts as the first file (by name) says it; the second is told as
// a problem.
func merge(files map[string]objects) (*Snapshot, []string) {
	s := &Snapshot{Nodes: map[string]Node{}, Pods: map[string]Pod{}, Namespaces: map[string]Namespace{},
		IPPools: map[string]api.IPPool{}, NetworkPolicies: map[string]NetworkPolicy{}}
	from := map[string]string{} // "Node a" -> file
	var problems []string
	first := func(object, file string) bool {
		if other, taken := from[object]; taken {
			problems = append(problems, fmt.Sprintf("%s: %s is also in %s, which takes precedence", file, object, other))
			return false
		}
		from[object] = file
		return true
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		for _, n := range files[file].nodes {
			if first("Node "+n.Name, file) {
				s.Nodes[n.Name] = n
			}
		}
		for _, p := range files[file].pods {
			if key := p.Namespace + "/" + p.Name; first("Pod "+key, file) {
				s.Pods[key] = p
			}
		}
		for _, n := range files[file].namespaces {
			if first("Namespace "+n.Name, file) {
				s.Namespaces[n.Name] = n
			}
		}
		for _, p := range files[file].pools {
			if first("IPPool "+p.Name, file) {
				s.IPPools[p.Name] = p
			}
		}
		for _, p := range files[file].policies {
			if first(p.String(), file) {
				s.NetworkPolicies[p.String()] = p
			}
		}
	}
	return s, problems
}

func equal(a, b *Snapshot) bool {
	return reflect.DeepEqual(a.Nodes, b.Nodes) && reflect.DeepEqual(a.Pods, b.Pods) &&
		reflect.DeepEqual(a.Namespaces, b.Namespaces) && reflect.DeepEqual(a.IPPools, b.IPPools) &&
		reflect.DeepEqual(a.NetworkPolicies, b.NetworkPolicies) && slices.Equal(a.Problems, b.Problems)
}
