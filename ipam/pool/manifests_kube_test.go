package pool

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/apitest"
)

// shared is the API server of this package's tests: see TestMain.
var shared apitest.Shared

func TestMain(m *testing.M) {
	code := m.Run()
	if err := shared.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// cluster is an API server with Fairlead's manifests.
type cluster struct {
	t      *testing.T
	client dynamic.Interface
}

// policyTimeout is how long the API server may take to observe a new policy: about a second on an idle machine.
const policyTimeout = time.Minute

func newCluster(t *testing.T) cluster {
	t.Helper()
	s := shared.Get(t)
	for _, component := range []string{"crds", "policy"} {
		err := s.Apply(t.Context(), "../../build/manifests/fairlead.yaml", "app.kubernetes.io/component="+component)
		if err != nil {
			t.Fatal(err)
		}
	}
	client, err := dynamic.NewForConfig(&rest.Config{Host: s.URL, BearerToken: apitest.AdminToken, QPS: 1000, Burst: 1000,
		WarningHandler: rest.NoWarnings{}, TLSClientConfig: rest.TLSClientConfig{CAFile: s.CA()}})
	if err != nil {
		t.Fatal(err)
	}
	c := cluster{t, client}
	const bad = "{ipRanges: [{start: 10.2.0.9, end: 10.2.0.2}], subnetInfo: {gateway: 10.2.0.1, prefixLength: 24}}"
	for deadline := time.Now().Add(policyTimeout); ; time.Sleep(100 * time.Millisecond) {
		err := c.create("v1beta1", "bad", bad, "All")
		if err != nil && strings.Contains(err.Error(), "denied request") {
			return c
		}
		if time.Now().After(deadline) {
			t.Fatalf("the policy is not in force: %v", err)
		}
	}
}

func (c cluster) pools(version string) dynamic.ResourceInterface {
	return c.client.Resource(schema.GroupVersionResource{Group: api.PoolGroup, Version: version, Resource: "ippools"})
}

// create creates an IPPool; dryRun may be "All".
func (c cluster) create(version, name, spec string, dryRun ...string) error {
	_, err := c.pools(version).Create(c.t.Context(), c.object(version, name, spec), metav1.CreateOptions{DryRun: dryRun})
	return err
}

func (c cluster) object(version, name, spec string) *unstructured.Unstructured {
	c.t.Helper()
	var u unstructured.Unstructured
	text := fmt.Sprintf("{apiVersion: %s/%s, kind: IPPool, metadata: {name: %s}, spec: %s}", api.PoolGroup, version, name, spec)
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		c.t.Fatalf("%s: %v", text, err)
	}
	return &u
}

// update replaces a pool's spec.
func (c cluster) update(version, name, spec string) error {
	c.t.Helper()
	u := c.get(version, name)
	u.Object["spec"] = c.object(version, name, spec).Object["spec"]
	_, err := c.pools(version).Update(c.t.Context(), u, metav1.UpdateOptions{})
	return err
}

func (c cluster) get(version, name string) *unstructured.Unstructured {
	c.t.Helper()
	u, err := c.pools(version).Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return u
}

// setStatus writes the status as the controller does.
func (c cluster) setStatus(name, status string) {
	c.t.Helper()
	u := c.get("v1beta1", name)
	var s map[string]any
	if err := yaml.Unmarshal([]byte(status), &s); err != nil {
		c.t.Fatal(err)
	}
	u.Object["status"] = s
	if _, err := c.pools("v1beta1").UpdateStatus(c.t.Context(), u, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c cluster) remove(name string) error {
	return c.pools("v1beta1").Delete(context.WithoutCancel(c.t.Context()), name, metav1.DeleteOptions{})
}

// The pools of Antrea's page, and other valid ones, are accepted as written, keep the form they were written in, and
// mean the same in both versions.
func TestKubePoolsAreAccepted(t *testing.T) {
	c := newCluster(t)
	for name, p := range map[string]struct{ version, spec, addresses string }{
		"pool1": {"v1alpha2", `{ipVersion: 4, ipRanges: [{start: "10.2.0.12", end: "10.2.0.20", gateway: "10.2.0.1",
		  prefixLength: 24, vlan: 2}]}`, "10.2.0.12-10.2.0.20"},
		"ipv4-pool-1": {"v1alpha2", `{ipVersion: 4, ipRanges: [{cidr: "10.10.1.0/26", gateway: "10.10.1.1", prefixLength: 24}]}`,
			"10.10.1.2-10.10.1.63"},
		"ipv6-pool-1": {"v1alpha2", `{ipVersion: 6, ipRanges: [{start: "3ffe:ffff:1:01ff::0100",
		  end: "3ffe:ffff:1:01ff::0200", gateway: "3ffe:ffff:1:01ff::1", prefixLength: 64}]}`,
			"3ffe:ffff:1:1ff::100-3ffe:ffff:1:1ff::200"},
		"beta": {"v1beta1", `{ipRanges: [{cidr: 10.3.0.0/28}, {start: 10.3.0.40, end: 10.3.0.41}],
		  subnetInfo: {gateway: 10.3.0.1, prefixLength: 24, vlan: 4094}, excludes: [10.3.0.4-10.3.0.13]}`,
			"10.3.0.2-10.3.0.3 10.3.0.14-10.3.0.15 10.3.0.40-10.3.0.41"},
		"spaces": {"v1beta1", `{ipRanges: [{start: 10.4.0.2, end: 10.4.0.9}, {start: 10.4.0.10, end: 10.4.0.12}],
		  subnetInfo: {gateway: 10.4.0.1, prefixLength: 24}, excludes: [10.4.0.3, ' 10.4.0.4 - 10.4.0.6 ', 10.4.0.8/31]}`,
			"10.4.0.2 10.4.0.7 10.4.0.10-10.4.0.12"},
		"linklocal": {"v1beta1", "{ipRanges: [{cidr: 'fd00::/126'}], subnetInfo: {gateway: 'fe80::1', prefixLength: 64}}",
			"fd00::1-fd00::3"},
	} {
		if err := c.create(p.version, name, p.spec); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, version := range []string{"v1alpha2", "v1beta1"} {
			got, err := FromObject(c.get(version, name))
			if err != nil || all(got) != p.addresses {
				t.Errorf("%s read as %s: %v, %v, want %s", name, version, all(got), err, p.addresses)
			}
		}
		if err := c.remove(name); err != nil {
			t.Error(err)
		}
	}
}

// What Antrea wrote into a pool's status is preserved by any writer.
func TestKubeAntreasStatusStays(t *testing.T) {
	c := newCluster(t)
	if err := c.create("v1beta1", "theirs", inUse); err != nil {
		t.Fatal(err)
	}
	c.setStatus("theirs", `{ipAddresses: [{ipAddress: 10.2.0.12, phase: Allocated, owner: {pod: {name: a, x: {more: 1}}}}]}`)
	pool := c.get("v1alpha2", "theirs")
	pool.SetLabels(map[string]string{"a": "b"})
	if _, err := c.pools("v1alpha2").Update(t.Context(), pool, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	addresses, _, err := unstructured.NestedSlice(c.get("v1beta1", "theirs").Object, "status", "ipAddresses")
	if got := fmt.Sprint(addresses); err != nil ||
		got != "[map[ipAddress:10.2.0.12 owner:map[pod:map[name:a x:map[more:1]]] phase:Allocated]]" {
		t.Errorf("%s, %v", got, err)
	}
	if err := c.remove("theirs"); err != nil {
		t.Error(err)
	}
}

// What the API server rejects has a message with a remedy, and Read rejects it as well.
func TestKubePoolsAreRefused(t *testing.T) {
	c := newCluster(t)
	const subnet = "subnetInfo: {gateway: 10.2.0.1, prefixLength: 24}"
	oldForm := func(r string) string {
		return "{ipVersion: 4, ipRanges: [{" + r + ", gateway: 10.2.0.1, prefixLength: 24}]}"
	}
	with := func(ranges string, excludes ...string) string {
		return "{ipRanges: [" + ranges + "], " + subnet + ", excludes: [" + strings.Join(excludes, ", ") + "]}"
	}
	for spec, want := range map[string]string{
		"{ipRanges: [], " + subnet + "}":                                                                            "should have at least 1 items",
		"{ipRanges: [{cidr: 10.2.0.0/24}]}":                                                                         "set either ipVersion, with gateway, prefixLength and vlan in each range, or subnetInfo, not both",
		"{ipVersion: 4, ipRanges: [{cidr: 10.2.0.0/24}], " + subnet + "}":                                           "set either ipVersion",
		"{ipVersion: 5, ipRanges: [{cidr: 10.2.0.0/24, gateway: 10.2.0.1, prefixLength: 24}]}":                      `supported values: "4", "6"`,
		"{ipVersion: 4, ipRanges: [{cidr: 10.2.0.0/24}]}":                                                           "with ipVersion, set a gateway and a prefixLength in each range",
		"{ipRanges: [{cidr: 10.2.0.0/24, vlan: 3}], " + subnet + "}":                                                "with subnetInfo, set gateway, prefixLength and vlan there and in no range",
		"{ipRanges: [{cidr: 10.2.0.0/24}], subnetInfo: {gateway: 10.2.0.1}}":                                        "spec.subnetInfo.prefixLength: Required value",
		"{ipRanges: [{cidr: 10.2.0.0/24}], subnetInfo: {gateway: here, prefixLength: 24}}":                          "write an IP address",
		oldForm("cidr: 10.2.0.0/24, vlan: 4095"):                                                                    "use 1 to 4094, or 0 for untagged. IEEE 802.1Q reserves 4095, and switches drop it",
		oldForm("cidr: 10.2.0.0/24, vlan: -1"):                                                                      "use 1 to 4094",
		oldForm("cidr: 10.2.0.0"):                                                                                   "write a CIDR such as 10.2.0.0/28",
		oldForm("cidr: 10.2.0.0/24, start: 10.2.0.1"):                                                               "a range has cidr, or start and end",
		oldForm("start: 10.2.0.1"):                                                                                  "a range has cidr, or start and end",
		oldForm("start: 10.2.0.1, end: x"):                                                                          "write an IP address",
		oldForm("start: 10.2.0.9, end: 10.2.0.2"):                                                                   "start of a range is above its end. Swap them",
		oldForm("start: 10.2.0.200, end: 10.2.1.2"):                                                                 "a range is not inside of the subnet of its gateway and prefixLength",
		oldForm("cidr: 10.2.0.0/23"):                                                                                "a range is not inside of the subnet",
		oldForm("start: 10.2.0.9, end: 'fd00::1'"):                                                                  "start and end of a range are of different families. Use one family for both",
		oldForm("cidr: 'fd00::/64'"):                                                                                "the pool has one family, that of ipVersion or of its first range",
		"{ipVersion: 6, ipRanges: [{cidr: 10.2.0.0/24, gateway: 10.2.0.1, prefixLength: 24}]}":                      "the pool has one family",
		"{ipVersion: 4, ipRanges: [{start: 'fd00::2', end: 'fd00::9', gateway: 'fd00::1', prefixLength: 64}]}":      "the pool has one family",
		"{ipRanges: [{cidr: 10.2.0.0/24}], subnetInfo: {gateway: 'fe80::1', prefixLength: 24}}":                     "a gateway is not of the pool's family",
		"{ipRanges: [{cidr: 10.2.0.0/24}, {cidr: 'fd00::/64'}], subnetInfo: {gateway: 10.2.0.1, prefixLength: 24}}": "the pool has one family",
		"{ipRanges: [{cidr: 10.2.0.0/24}], subnetInfo: {gateway: 10.2.0.1, prefixLength: 64}}":                      "prefixLength of an IPv4 subnet is 1 to 31",
		"{ipRanges: [{cidr: 10.2.0.1/32}], subnetInfo: {gateway: 10.2.0.1, prefixLength: 32}}":                      "prefixLength of an IPv4 subnet is 1 to 31",
		"{ipRanges: [{cidr: 'ff05::/64'}], subnetInfo: {gateway: 'ff05::1', prefixLength: 64}}":                     "a gateway is not a router's address",
		"{ipRanges: [{cidr: 127.0.0.0/24}], subnetInfo: {gateway: 127.0.0.1, prefixLength: 24}}":                    "a gateway is not a router's address",
		"{ipRanges: [{cidr: 240.0.0.0/24}], subnetInfo: {gateway: 240.0.0.1, prefixLength: 24}}":                    "a range has addresses that no pod may have",
		"{ipRanges: [{start: 0.0.1.5, end: 0.0.1.9}], subnetInfo: {gateway: 0.0.1.1, prefixLength: 24}}":            "a range has addresses that no pod may have",
		"{ipRanges: [{cidr: 'fe80::/64'}], subnetInfo: {gateway: 'fe80::1', prefixLength: 64}}":                     "a range has addresses that no pod may have",
		oldForm("cidr: 10.2.0.5/25"):                                                                                "a CIDR has host bits set",
		with("{cidr: 10.2.0.0/28}, {cidr: 10.2.0.0/28}"):                                                            "two ranges overlap",
		with("{cidr: 10.2.0.0/28}, {start: 10.2.0.9, end: 10.2.0.20}"):                                              "two ranges overlap",
		with("{start: 10.2.0.7, end: 10.2.0.12}, {start: 10.2.0.9, end: 10.2.0.20}"):                                "two ranges overlap",
		with("{cidr: 10.2.0.0/28}", "here"):                                                                         "an entry of excludes is not an address, a CIDR or FIRST-LAST of the pool's family",
		with("{cidr: 10.2.0.0/28}", "10.2.0.3/28"):                                                                  "an entry of excludes",
		with("{cidr: 10.2.0.0/28}", "10.2.0.3-"):                                                                    "an entry of excludes",
		with("{cidr: 10.2.0.0/28}", "10.2.0.3-4"):                                                                   "an entry of excludes",
		with("{cidr: 10.2.0.0/28}", "'fd00::1'"):                                                                    "an entry of excludes",
		with("{cidr: 10.2.0.0/28}", "'fd00::/64'"):                                                                  "an entry of excludes",
		with("{cidr: 10.2.0.0/28}", "'10.2.0.3-fd00::'"):                                                            "an entry of excludes",
		"{ipRanges: [{cidr: 'fd00::/63'}], subnetInfo: {gateway: 'fd00::1', prefixLength: 64}}":                     "a range is not inside of the subnet",
	} {
		for _, version := range []string{"v1alpha2", "v1beta1"} {
			err := c.create(version, "wrong", spec)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s %s\n\tgot  %v\n\twant %s", version, spec, err, want)
			}
			if err == nil {
				_ = c.remove("wrong") // it has failed already
			}
		}
		if _, err := Read(written(t, spec)); err == nil {
			t.Errorf("%s is refused by the API server alone", spec)
		}
	}
	// The annotation can be wrong on create and on update.
	u := c.object("v1beta1", "named", with("{cidr: 10.2.0.0/28}"))
	u.SetAnnotations(map[string]string{api.AnnotationNetwork: "storage"})
	named, err := c.pools("v1beta1").Create(t.Context(), u, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{"Storage", "-a", strings.Repeat("a", 64)} {
		named.SetAnnotations(map[string]string{api.AnnotationNetwork: wrong})
		_, err := c.pools("v1beta1").Update(t.Context(), named, metav1.UpdateOptions{DryRun: []string{"All"}})
		if err == nil || !strings.Contains(err.Error(), "is not a DNS label") {
			t.Errorf("network %q: %v", wrong, err)
		}
	}
	if err := c.remove("named"); err != nil {
		t.Error(err)
	}
}

// The largest pool that the CRD allows stays within the cost limit of the policy.
func TestKubeLargePoolIsAccepted(t *testing.T) {
	c := newCluster(t)
	for form, ends := range map[string]string{"cidr": "{cidr: 10.%[1]d.0.0/28}", "ends": "{start: 10.%[1]d.0.2, end: 10.%[1]d.0.200}"} {
		var ranges, excludes []string
		for i := range 256 {
			ranges = append(ranges, fmt.Sprintf(ends, i))
			excludes = append(excludes, fmt.Sprintf("10.%d.0.3-10.%[1]d.0.4", i))
		}
		spec := "{ipRanges: [" + strings.Join(ranges, ", ") + "], subnetInfo: {gateway: 10.0.0.1, prefixLength: 8}, excludes: [" +
			strings.Join(excludes, ", ") + "]}"
		for _, step := range []func(version, name, spec string) error{
			func(version, name, spec string) error { return c.create(version, name, spec) }, c.update} {
			if err := step("v1beta1", form, spec); err != nil {
				t.Errorf("%s: %v", form, err)
			}
			c.setStatus(form, "{usage: {used: 3, total: 25}}")
			spec = strings.Replace(spec, "10.0.0.3-", "10.0.0.4-", 1)
		}
		c.setStatus(form, "{usage: {used: 0, total: 25}}")
		if err := c.remove(form); err != nil {
			t.Error(err)
		}
	}
}

const inUse = `{ipRanges: [{start: 10.2.0.12, end: 10.2.0.20}, {cidr: 10.2.0.64/28}],
  subnetInfo: {gateway: 10.2.0.1, prefixLength: 24, vlan: 2}}`

// A pool in use can grow, but not shrink or be deleted.
func TestKubePoolInUse(t *testing.T) {
	c := newCluster(t)
	info := func(ranges, subnet string) string {
		return "{ipRanges: [" + ranges + "], subnetInfo: {" + subnet + "}}"
	}
	const subnet, second = "gateway: 10.2.0.1, prefixLength: 24, vlan: 2", ", {cidr: 10.2.0.64/28}"
	const shrunk = "pool used is in use (3 addresses): its ranges can be extended, not shortened or removed"
	const moved = "pool used is in use (3 addresses): its gateway, prefixLength and vlan cannot be changed"
	for spec, want := range map[string]string{
		info("{start: 10.2.0.12, end: 10.2.0.20}"+second+", {cidr: 10.2.0.128/28}", subnet):               "",
		info("{start: 10.2.0.9, end: 10.2.0.20}, {cidr: 10.2.0.64/27}", subnet):                           "",
		info("{cidr: 10.2.0.0/24}", subnet):                                                               "",
		info("{start: 10.2.0.12, end: 10.2.0.20}", subnet):                                                shrunk,
		info("{start: 10.2.0.12, end: 10.2.0.19}"+second, subnet):                                         shrunk,
		info("{start: 10.2.0.13, end: 10.2.0.30}"+second, subnet):                                         shrunk,
		info("{start: 10.2.0.12, end: 10.2.0.20}, {cidr: 10.2.0.64/29}", subnet):                          shrunk,
		info("{start: 10.2.0.12, end: 10.2.0.20}"+second, "gateway: 10.2.0.2, prefixLength: 24, vlan: 2"): moved,
		info("{start: 10.2.0.12, end: 10.2.0.20}"+second, "gateway: 10.2.0.1, prefixLength: 23, vlan: 2"): moved,
		info("{start: 10.2.0.12, end: 10.2.0.20}"+second, "gateway: 10.2.0.1, prefixLength: 24"):          moved,
		"{ipVersion: 4, ipRanges: [{cidr: 10.2.0.0/24, gateway: 10.2.0.1, prefixLength: 24, vlan: 2}]}":   "keeps the form it was written in",
	} {
		if err := c.create("v1beta1", "used", inUse); err != nil {
			t.Fatal(err)
		}
		c.setStatus("used", "{usage: {used: 3, total: 25}}")
		err := c.update("v1beta1", "used", spec)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s\n\tgot  %v\n\twant %q", spec, err, want)
		}
		pool := c.get("v1beta1", "used")
		pool.SetFinalizers([]string{api.PoolFinalizer})
		if _, err := c.pools("v1beta1").Update(t.Context(), pool, metav1.UpdateOptions{}); err != nil {
			t.Errorf("its finalizer: %v", err)
		}
		pool = c.get("v1beta1", "used")
		pool.SetFinalizers(nil)
		if _, err := c.pools("v1beta1").Update(t.Context(), pool, metav1.UpdateOptions{}); err != nil {
			t.Errorf("its finalizer: %v", err)
		}
		const held = "pool used is in use: 3 of its addresses are held. Delete the pods first"
		if err := c.remove("used"); err == nil || !strings.Contains(err.Error(), held) {
			t.Fatalf("DELETE: %v, want %s", err, held)
		}
		c.setStatus("used", "{usage: {used: 0, total: 25}}")
		if err := c.remove("used"); err != nil {
			t.Fatal(err)
		}
	}
}

// A range of the older form has its own subnet to keep, and an unused one may change.
func TestKubePoolInUseBySubnetOfRange(t *testing.T) {
	c := newCluster(t)
	const kept, other = "{start: 10.2.0.12, end: 10.2.0.20, gateway: 10.2.0.1, prefixLength: 24, vlan: 2}",
		"{cidr: 10.3.0.0/24, gateway: 10.3.0.1, prefixLength: 24}"
	old := func(ranges string) string { return "{ipVersion: 4, ipRanges: [" + ranges + "]}" }
	if err := c.create("v1alpha2", "old", old(kept)); err != nil {
		t.Fatal(err)
	}
	c.setStatus("old", "{usage: {used: 1, total: 9}}")
	if err := c.update("v1alpha2", "old", old(kept+", "+other)); err != nil {
		t.Error(err)
	}
	const want = "its gateway, prefixLength and vlan cannot be changed"
	if err := c.update("v1alpha2", "old", old(strings.Replace(kept, "vlan: 2", "vlan: 3", 1)+", "+other)); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("another VLAN: %v, want %s", err, want)
	}
	c.setStatus("old", "{usage: {used: 0, total: 9}}")
	if err := c.update("v1alpha2", "old", old(other)); err != nil {
		t.Errorf("a pool that is not used: %v", err)
	}
	if err := c.remove("old"); err != nil {
		t.Error(err)
	}
}

// While the policy exists no CRD can be deleted, with all its objects, not even with the whole manifest.
func TestKubeDefinitionsStay(t *testing.T) {
	c := newCluster(t)
	s := shared.Get(t)
	if err := c.create("v1beta1", "kept", "{ipRanges: [{cidr: 10.2.0.0/28}], subnetInfo: {gateway: 10.2.0.1, prefixLength: 24}}"); err != nil {
		t.Fatal(err)
	}
	deletable := func(want bool) {
		t.Helper()
		for _, crd := range []string{"ippools.crd.antrea.io", "ipallocations.ipam.fairlead.dev", "podcidrclaims.ipam.fairlead.dev",
			"podcidrranges.ipam.fairlead.dev"} {
			for deadline := time.Now().Add(policyTimeout); ; time.Sleep(100 * time.Millisecond) {
				err := s.Objects().Resource(apitest.Definitions).Delete(t.Context(), crd, metav1.DeleteOptions{DryRun: []string{"All"}})
				refused := err != nil && strings.Contains(err.Error(), "docs/install.md#uninstall")
				if refused && !want || err == nil && want {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%s can be deleted: %t, want %t (%v)", crd, !refused, want, err)
				}
			}
		}
	}
	deletable(false)
	err := s.Kubectl(t.Context(), "delete", "-f", "../../build/manifests/fairlead.yaml", "--ignore-not-found", "--wait=false")
	if err == nil || !strings.Contains(err.Error(), "docs/install.md#uninstall") {
		t.Errorf("the whole manifest was deleted: %v", err)
	}
	c.get("v1beta1", "kept")
	deletable(true) // the policy was deleted with the rest
	if err := c.remove("kept"); err != nil {
		t.Fatal(err)
	}
}
