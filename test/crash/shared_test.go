package crash

import (
	"testing"

	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
)

// watchAddresses detects two running pods with one address, and ignores one that runs and one that ends.
func TestSharedAddress(t *testing.T) {
	records := sandbox.OpenRecords(t.TempDir())
	save := func(name string, s sandbox.State, ip string) {
		must(t, records.Save(&sandbox.Record{Namespace: "default", Name: name, State: s, ContainerID: name, IPs: []string{ip}}))
	}
	save("a", sandbox.Running, "10.0.0.2")
	save("b", sandbox.Running, "10.0.0.3")
	save("c", sandbox.Terminating, "10.0.0.3")
	if err := sharedAddress(records); err != nil {
		t.Error(err)
	}
	save("c", sandbox.Running, "10.0.0.3")
	if sharedAddress(records) == nil {
		t.Error("b and c have one address, and nothing is said")
	}
}
