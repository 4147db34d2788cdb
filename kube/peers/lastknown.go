package peers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/internal/atomicfile"
	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/policy"
)

// form is the file format that this version writes, and the only one that it reads.
const form = 1

// lastKnown is the file of what was passed on last, read only by an agent that starts while the API server is
// unreachable.
type lastKnown struct {
	path, node string
}

// content is the content of the file.
type content struct {
	Form       int
	Node       string // the node of the agent that wrote it
	Policies   []policy.Policy
	Namespaces []policy.Namespace
	Nodes      []policy.Node
	Pods       []*policy.Pod
}

// read returns the content of the file and when it was written.
func (f lastKnown) read() (map[feed.Key]any, time.Time, error) {
	data, err := os.ReadFile(f.path)
	if err != nil {
		return nil, time.Time{}, err
	}
	info, err := os.Stat(f.path)
	if err != nil {
		return nil, time.Time{}, err
	}
	var c content
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields() // a policy that is read in part would be a different one
	switch err := d.Decode(&c); {
	case err != nil:
		return nil, time.Time{}, fmt.Errorf("%s: %w", f.path, err)
	case c.Form != form:
		return nil, time.Time{}, fmt.Errorf("%s has format %d, and this version reads format %d", f.path, c.Form, form)
	case c.Node != f.node:
		return nil, time.Time{}, fmt.Errorf("%s belongs to node %q, and this is %q", f.path, c.Node, f.node)
	case slices.Contains(c.Pods, nil):
		return nil, time.Time{}, fmt.Errorf("%s has a Pod that is null", f.path)
	}
	return c.objects(), info.ModTime(), nil
}

func (c content) objects() map[feed.Key]any {
	out := map[feed.Key]any{}
	for _, p := range c.Policies {
		name := p.Name
		if p.Namespace != "" {
			name = p.Namespace + "/" + name
		}
		out[feed.Key{Kind: p.Kind, Name: name}] = p
	}
	for _, n := range c.Namespaces {
		out[feed.Key{Kind: feed.Namespace, Name: n.Name}] = n
	}
	for _, n := range c.Nodes {
		out[feed.Key{Kind: feed.Node, Name: n.Name}] = n
	}
	shared := labelSets{}
	for _, p := range c.Pods {
		p.Labels = shared.intern(p.Labels)
		out[feed.Key{Kind: feed.Pod, Name: p.String()}] = p
	}
	return out
}

// write replaces the file atomically, and returns its size. Without any Node it is not written: that input was lost.
func (f lastKnown) write(objects map[feed.Key]any) (size int, err error) {
	c := content{Form: form, Node: f.node}
	for _, v := range objects {
		switch o := v.(type) {
		case policy.Policy:
			c.Policies = append(c.Policies, o)
		case policy.Namespace:
			c.Namespaces = append(c.Namespaces, o)
		case policy.Node:
			c.Nodes = append(c.Nodes, o)
		case *policy.Pod:
			c.Pods = append(c.Pods, o)
		}
	}
	if len(c.Nodes) == 0 {
		return 0, nil
	}
	data, err := json.Marshal(c)
	if err != nil {
		return 0, err
	}
	return len(data), atomicfile.Write(f.path, data, 0o600)
}
