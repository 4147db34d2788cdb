package inputs

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/apitest"
	"github.com/fairlead-cni/fairlead/test/nstest"
)

// pools is the administrator's client for IPPools.
func (c *cluster) pools() dynamic.NamespaceableResourceInterface {
	c.t.Helper()
	d, err := dynamic.NewForConfig(&rest.Config{Host: c.URL, BearerToken: apitest.AdminToken,
		TLSClientConfig: rest.TLSClientConfig{CAFile: c.CA()}})
	c.must(err)
	return d.Resource(api.PoolResource)
}

func (c *cluster) makePool(manifest string) {
	c.t.Helper()
	var u unstructured.Unstructured
	c.must(json.Unmarshal([]byte(manifest), &u))
	_, err := c.pools().Create(c.t.Context(), &u, metav1.CreateOptions{})
	c.must(err)
}

const poolA = `{"apiVersion": "crd.antrea.io/v1beta1", "kind": "IPPool", "metadata": {"name": "a"},
	"spec": {"ipRanges": [{"cidr": "10.10.1.0/26"}], "subnetInfo": {"gateway": "10.10.1.1", "prefixLength": 24, "vlan": 2}}}`

// In a cluster without the CRD of IPPools the trouble has a remedy, and nothing else fails: routed pods need none.
func TestKubePools(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	k := c.sourceOf(true)
	s := c.until(k, "the missing definition", troubled)
	if !strings.Contains(s.Trouble.Error(), "kubectl apply -f build/manifests/fairlead.yaml -l app.kubernetes.io/component=crds") || s.IPPools != nil {
		t.Errorf("without a definition: trouble %v, pools %v", s.Trouble, s.IPPools)
	}
	c.until(k, "the Node all the same", hasNodes("me"))
	if _, found, err := k.Pool(t.Context(), "a"); found || err != nil {
		t.Errorf("a pool without a definition: found %t, %v", found, err)
	}

	const definitions = "app.kubernetes.io/component=crds"
	c.must(c.Apply(t.Context(), "../../build/manifests/fairlead.yaml", definitions))
	defer func() { c.must(c.Objects().RemoveAll(t.Context(), apitest.Definitions, "", definitions)) }()
	c.until(k, "no pools", func(s *Snapshot) bool { return s.IPPools != nil && s.Trouble == nil })
	quiet(t, k)
	c.makePool(poolA)
	if p, found, err := k.Pool(t.Context(), "a"); !found || err != nil || p.Spec.SubnetInfo.VLAN != 2 {
		t.Errorf("a pool made this moment: %+v, found %t, %v", p, found, err)
	}
	s = c.until(k, "the pool", func(s *Snapshot) bool { return len(s.IPPools) == 1 })
	if p := s.IPPools["a"]; p.UID == "" || p.Spec.IPRanges[0].CIDR != "10.10.1.0/26" || p.Spec.SubnetInfo.Gateway != "10.10.1.1" {
		t.Errorf("the pool is %+v", p)
	}
	select {
	case <-k.Changed(): // a moment after the snapshot
	case <-time.After(patience):
		t.Error("no notification of the pool")
	}
	quiet(t, k)
	_, err := c.pools().Patch(t.Context(), "a", types.MergePatchType,
		[]byte(`{"status": {"usage": {"used": 1, "total": 2}, "freeMap": ["10.10.1.7"]}}`), metav1.PatchOptions{}, "status")
	c.must(err)
	c.until(k, "the hint", func(s *Snapshot) bool { return len(s.IPPools["a"].Status.FreeMap) == 1 })
	select {
	case <-k.Changed():
		t.Error("a hint where addresses are free is reported as a change")
	default:
	}
	_, err = c.pools().Patch(t.Context(), "a", types.MergePatchType,
		[]byte(`{"spec": {"ipRanges": [{"cidr": "10.10.1.0/26"}, {"cidr": "10.10.1.64/26"}]}}`), metav1.PatchOptions{})
	c.must(err)
	c.until(k, "the longer pool", func(s *Snapshot) bool { return len(s.IPPools["a"].Spec.IPRanges) == 2 })
	c.keepsPools(k)
	if err := c.pools().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	c.until(k, "the end of the pool", func(s *Snapshot) bool { return len(s.IPPools) == 0 })
}

// keepsPools checks that an agent that starts while the API server is unreachable knows the pools.
func (c *cluster) keepsPools(before *Kubernetes) {
	c.t.Helper()
	nstest.Wait(c.t, patience, "the file to have the pool", func() bool {
		s, _, err := before.file.read()
		return err == nil && len(s.IPPools["a"].Spec.IPRanges) == 2
	})
	c.KillAPI()
	k := c.sourceOf(true)
	s := c.until(k, "pools from the file", func(s *Snapshot) bool { return len(s.IPPools) == 1 })
	if len(s.IPPools["a"].Spec.IPRanges) != 2 {
		c.t.Errorf("the pool is %+v", s.IPPools["a"])
	}
	if _, found, err := k.Pool(c.t.Context(), "b"); found || err == nil || !strings.Contains(err.Error(), "IPPool b") {
		c.t.Errorf("a pool without an API server: found %t, %v", found, err)
	}
	c.must(c.StartAPI(c.t.Context()))
}
