package pool

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairlead-cni/fairlead/api"
)

// FromObject reads an IPPool of either version from client-go's dynamic client. Its errors are like Read's.
func FromObject(u *unstructured.Unstructured) (Pool, error) {
	text, err := json.Marshal(u.Object)
	if err != nil {
		return Pool{}, fmt.Errorf("IPPool %s: %w", u.GetName(), err)
	}
	var p api.IPPool
	if err := json.Unmarshal(text, &p); err != nil {
		return Pool{}, fmt.Errorf("IPPool %s: %w", u.GetName(), err)
	}
	return Read(p)
}
