package inputs

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/fairlead-cni/fairlead/api"
)

// merge puts the objects of all files into one snapshot. Of an object that is in two files the first file (by name)
// counts; the second is reported as a problem.
func merge(files map[string]objects) (*Snapshot, []string) {
	s := &Snapshot{Nodes: map[string]Node{}, Pods: map[string]Pod{}, Namespaces: map[string]Namespace{},
		IPPools: map[string]api.IPPool{}, NetworkPolicies: map[string]NetworkPolicy{},
		services: map[string]*Service{}, endpointSlices: map[string]*EndpointSlice{}}
	from := map[string]string{} // "Node a" -> file
	var problems []string
	for _, file := range slices.Sorted(maps.Keys(files)) {
		for _, o := range files[file] {
			if other, taken := from[o.name]; taken {
				problems = append(problems, fmt.Sprintf("%s: %s is also in %s, which takes precedence", file, o.name, other))
				continue
			}
			from[o.name] = file
			o.put(s)
		}
	}
	return s, problems
}

func equal(a, b *Snapshot) bool {
	return reflect.DeepEqual(a.Nodes, b.Nodes) && reflect.DeepEqual(a.Pods, b.Pods) &&
		reflect.DeepEqual(a.Namespaces, b.Namespaces) && reflect.DeepEqual(a.IPPools, b.IPPools) &&
		reflect.DeepEqual(a.services, b.services) && reflect.DeepEqual(a.endpointSlices, b.endpointSlices) &&
		reflect.DeepEqual(a.NetworkPolicies, b.NetworkPolicies) && slices.Equal(a.Problems, b.Problems)
}
