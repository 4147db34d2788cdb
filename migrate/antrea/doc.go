// Package antrea imports Antrea's allocations: status.ipAddresses of its IPPools become IPAllocations. It does not
// change Antrea's data. What it creates are allocations like all others; existing ones are recognised by name and
// owner, so it may be run again at any time.
//
// Only what can be verified is imported: the entry's Pod exists, by a live read, and has the address, or the address is
// reserved for a pod of a StatefulSet that exists.
package antrea

import (
	"encoding/json"
	"fmt"

	"github.com/fairlead-cni/fairlead/api"
)

// Entry is one element of status.ipAddresses, as Antrea's controllers and agents write it, in both versions of IPPool
// (https://antrea.io/docs/main/docs/api-reference/).
type Entry struct {
	IPAddress string `json:"ipAddress"`
	// Phase is Allocated, Reserved or Preallocated. The owner says the same, and more.
	Phase string `json:"phase"`
	Owner Owner  `json:"owner"`
}

// Owner has Pod if one has the address now, and StatefulSet if the address is kept for one of its pods.
type Owner struct {
	Pod         *PodOwner         `json:"pod,omitempty"`
	StatefulSet *StatefulSetOwner `json:"statefulSet,omitempty"`
}

// PodOwner is an interface of a pod. IFName is empty for its first one.
type PodOwner struct {
	Name        string `json:"name"`
	Namespace   string `json:"namespace"`
	ContainerID string `json:"containerID"`
	IFName      string `json:"ifName,omitempty"`
}

// StatefulSetOwner is one ordinal of a StatefulSet.
type StatefulSetOwner struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Index     int    `json:"index"`
}

// String is the owner as text.
func (o Owner) String() string {
	switch {
	case o.Pod != nil && o.Pod.IFName != "":
		return fmt.Sprintf("Pod %s/%s, interface %s", o.Pod.Namespace, o.Pod.Name, o.Pod.IFName)
	case o.Pod != nil:
		return fmt.Sprintf("Pod %s/%s", o.Pod.Namespace, o.Pod.Name)
	case o.StatefulSet != nil:
		return fmt.Sprintf("StatefulSet %s/%s, ordinal %d", o.StatefulSet.Namespace, o.StatefulSet.Name, o.StatefulSet.Index)
	}
	return "no owner"
}

// entries are a pool's entries. A pool that Antrea never wrote to has none.
func entries(p api.IPPool) ([]Entry, error) {
	if len(p.Status.IPAddresses) == 0 {
		return nil, nil
	}
	var out []Entry
	if err := json.Unmarshal(p.Status.IPAddresses, &out); err != nil {
		return nil, fmt.Errorf("status.ipAddresses of IPPool %s is not as Antrea writes it: %w", p.Name, err)
	}
	return out, nil
}
