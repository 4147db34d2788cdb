package inputs

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/kube/follow"
	"github.com/fairlead-cni/fairlead/test/apitest"
)

// definition is the name of the CRD of ClusterNetworkPolicies.
const definition = "clusternetworkpolicies.policy.networking.k8s.io"

func there(v any) bool { return v != nil }

// ClusterNetworkPolicies are removed with their CRD, even if that is deleted while the API server is unreachable, and
// not before that is certain.
func TestKubePoliciesOfADeletedDefinition(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	door := c.door()
	j := c.judged(t)
	c.clusterPolicies(t, "v1alpha2", func() {
		j.until("the policy", j.has(feed.ClusterNetworkPolicy, "deny", there))
		door.shut()
		c.must(c.Objects().Remove(t.Context(), apitest.Definitions, "", definition))
		j.until("the outage", func() bool { return j.k.Snapshot().Trouble != nil })
		if !j.has(feed.ClusterNetworkPolicy, "deny", there)() {
			t.Error("the policy is gone without an answer of the API server")
		}
		door.open()
		j.until("the policy to go", j.has(feed.ClusterNetworkPolicy, "deny", gone))
		c.until(j.k, "no trouble", untroubled)
	})
}

// A response "not found" for every path, as from a proxy or a server that is starting, proves nothing.
func TestKubeNotFoundProvesNothing(t *testing.T) {
	c := newCluster(t)
	answer := c.brokenProxy()
	client, err := kube.New(api.AgentConfig{ClientConnection: api.ClientConnection{Kubeconfig: c.kubeconfig}}, "test")
	c.must(err)
	d := follow.Definitions{Dynamic: client.Dynamic, Metadata: client.Metadata, Discovery: client.Kubernetes.Discovery()}
	absent := func() error { return d.Absent(t.Context(), clusterPolicies) }
	c.must(absent())
	for _, status := range []int{http.StatusNotFound, http.StatusForbidden, http.StatusServiceUnavailable} {
		answer(status)
		if err := absent(); err == nil {
			t.Errorf("absent by an answer %d", status)
		}
		answer(0)
	}
	c.clusterPolicies(t, "v1alpha2", func() {
		if err := absent(); err == nil {
			t.Error("absent, and there is one")
		}
	})
	// The server still lists the resource for a moment after its CRD is deleted.
	for start := time.Now(); absent() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("deleted, and not absent after %s: %v", patience, absent())
		}
	}
}

// Policies in a version that is not supported are reported, and open nothing: policies are unknown until they are
// deleted.
func TestKubePoliciesInAnotherVersion(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	c.clusterPolicies(t, "v1beta7", func() {
		k := c.judged(t).k
		s := c.until(k, "a trouble that names the version", func(s *Snapshot) bool {
			return s.Trouble != nil && strings.Contains(s.Trouble.Error(), "v1beta7")
		})
		t.Log(s.Trouble)
		if k.judged.Read() {
			t.Error("the policies count as read")
		}
		c.must(c.Objects().Remove(t.Context(), "clusternetworkpolicies.v1beta7.policy.networking.k8s.io", "", "deny"))
		c.until(k, "no trouble without any", func(s *Snapshot) bool { return s.Trouble == nil && k.judged.Read() })
	})
}
