package ctl

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/internal/cli"
	"github.com/fairlead-cni/fairlead/migrate/antrea"
	"github.com/fairlead-cni/fairlead/test/apitest"
)

// antreas writes pool usage as Antrea's agents and controller do.
func (c *fixture) antreas(pool string, entries ...antrea.Entry) {
	c.t.Helper()
	text, err := json.Marshal(map[string]any{"status": map[string]any{"ipAddresses": entries}})
	c.must(err)
	_, err = c.client.Dynamic.Resource(api.PoolResource).Patch(c.t.Context(), pool, types.MergePatchType, text,
		metav1.PatchOptions{}, "status")
	c.must(err)
}

func ofPod(address, name, container, ifName string) antrea.Entry {
	return antrea.Entry{IPAddress: address, Phase: "Allocated", Owner: antrea.Owner{Pod: &antrea.PodOwner{Namespace: "default",
		Name: name, ContainerID: container, IFName: ifName}}}
}

func ofSet(address string, ordinal int) antrea.Entry {
	return antrea.Entry{IPAddress: address, Phase: "Reserved", Owner: antrea.Owner{StatefulSet: &antrea.StatefulSetOwner{
		Namespace: "default", Name: "db", Index: ordinal}}}
}

// outcomes runs the command and returns the abbreviated outcome for each address.
func (c *fixture) outcomes(args ...string) (out map[string]string, code int) {
	c.t.Helper()
	text, code := c.run(append([]string{"ipam", "import-antrea", "-o", "json"}, args...)...)
	var said struct{ Entries []antrea.Result }
	if err := json.Unmarshal([]byte(text), &said); err != nil {
		c.t.Fatalf("%v\n%s", err, text)
	}
	out = map[string]string{}
	for _, r := range said.Entries {
		out[r.Pool+" "+r.Address] = strings.TrimSuffix(string(r.Outcome)+": "+r.Why, ": ")
	}
	return out, code
}

// Antrea's records become allocations if they can be verified; others are skipped; a second run changes nothing.
func TestKubeImportAntrea(t *testing.T) {
	c := newFixture(t)
	t.Cleanup(c.removeFinalizers)
	c.pool("new-form")
	c.apply(`{apiVersion: crd.antrea.io/v1alpha2, kind: IPPool, metadata: {name: old-form}, spec: {ipVersion: 4,
		ipRanges: [{cidr: 10.3.0.0/28, gateway: 10.3.0.1, prefixLength: 24, vlan: 2}]}}`)
	node := c.node("n1", corev1.ConditionTrue)
	node.Status.NodeInfo.BootID = "boot-1"
	_, err := c.client.Kubernetes.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	c.must(err)
	c.apply(`{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: default}, spec: {replicas: 2, serviceName: db,
		selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`)
	set, err := c.client.Kubernetes.AppsV1().StatefulSets("default").Get(t.Context(), "db", metav1.GetOptions{})
	c.must(err)

	web, moved := c.pod("web", "n1", "10.2.0.10"), c.pod("moved", "n1", "10.2.0.19")
	ended := c.pod("ended", "n1", "10.2.0.12")
	ended.Status.Phase = corev1.PodSucceeded
	_, err = c.client.Kubernetes.CoreV1().Pods("default").UpdateStatus(t.Context(), ended, metav1.UpdateOptions{})
	c.must(err)
	db := c.pod("db-0", "n1", "10.3.0.5")
	yes := true
	db.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: set.UID, Controller: &yes}}
	_, err = c.client.Kubernetes.CoreV1().Pods("default").Update(t.Context(), db, metav1.UpdateOptions{})
	c.must(err)
	second := c.pod("second", "n1", "10.77.1.9")
	second.Annotations = map[string]string{"k8s.v1.cni.cncf.io/network-status": `[{"name":"default/storage","interface":"net1","ips":["10.2.0.14"]}]`}
	_, err = c.client.Kubernetes.CoreV1().Pods("default").Update(t.Context(), second, metav1.UpdateOptions{})
	c.must(err)

	both := ofPod("10.3.0.5", "db-0", "c-db", "")
	both.Owner.StatefulSet = ofSet("", 0).Owner.StatefulSet
	c.antreas("new-form", ofPod("10.2.0.10", "web", "c-web", ""), ofPod("10.2.0.11", "gone", "c", ""),
		ofPod("10.2.0.12", "ended", "c", ""), ofPod("10.2.0.13", "moved", "c", ""), ofPod("10.2.0.14", "second", "c-second", "net1"),
		ofPod("10.2.0.15", "second", "c-second", "net2"), ofPod("10.9.0.1", "web", "c-web", ""), ofPod("nonsense", "web", "c", ""),
		antrea.Entry{IPAddress: "10.2.0.16", Phase: "Allocated"})
	c.antreas("old-form", both, ofSet("10.3.0.6", 1), ofSet("10.3.0.7", 2), ofSet("10.3.0.8", 0))
	_ = moved

	want := map[string]string{
		"new-form 10.2.0.10": "new", "new-form 10.2.0.14": "new", "old-form 10.3.0.5": "new", "old-form 10.3.0.6": "new",
		"new-form 10.2.0.11": "refused: the Pod no longer exists",
		"new-form 10.2.0.12": "refused: the Pod has finished",
		"new-form 10.2.0.13": "refused: the Pod has 10.2.0.19 instead",
		"new-form 10.2.0.15": "refused: the Pod's annotation k8s.v1.cni.cncf.io/network-status does not list it for interface net2, but none",
		"new-form nonsense":  `refused: "nonsense" is not an IP address`,
		"new-form 10.2.0.16": "refused: the entry has no owner",
		"old-form 10.3.0.7":  "refused: the StatefulSet has no pod with ordinal 2: it was scaled to 2",
		"old-form 10.3.0.8":  "refused: its Pod default/db-0 has 10.3.0.5",
	}
	compare := func(got map[string]string) {
		t.Helper()
		for address, outcome := range want {
			if got[address] != outcome {
				t.Errorf("%s: %q, want %q", address, got[address], outcome)
			}
		}
		if why := got["new-form 10.9.0.1"]; !strings.HasPrefix(why, "refused: 10.9.0.1") {
			t.Errorf("10.9.0.1 is not in the pool: %q", why)
		}
	}
	got, code := c.outcomes("--dry-run")
	compare(got)
	if list := c.addresses(); len(list) > 0 || code != exitWarning {
		t.Fatalf("a dry run: exit code %d, and there are %v", code, list)
	}
	if out, code := c.run("ipam", "import-antrea"); code != cli.ExitUsage || !strings.Contains(out, "--dry-run to see what would be done") {
		t.Errorf("without a terminal: exit code %d\n%s", code, out)
	}
	for range 2 { // the second time they exist
		for address, outcome := range want {
			switch outcome {
			case "new":
				want[address] = "imported"
			case "imported":
				want[address] = "there"
			}
		}
		got, code = c.outcomes("--yes")
		if compare(got); code != exitWarning {
			t.Errorf("exit code %d", code)
		}
	}
	text, _ := c.run("ipam", "import-antrea", "--dry-run")
	t.Log("\n" + text)

	owner := func(p *corev1.Pod, container, ifName, network string, only bool) api.AllocationOwner {
		return api.AllocationOwner{PodUID: string(p.UID), Namespace: "default", Name: p.Name, ContainerID: container, IfName: ifName,
			Network: network, IPAMOnly: only, Node: "n1", BootID: "boot-1"}
	}
	kept := func(ordinal int) *api.AllocationReservation {
		return &api.AllocationReservation{Kind: "StatefulSet", Namespace: "default", Name: "db", UID: string(set.UID), Ordinal: ordinal}
	}
	for address, want := range map[string]api.IPAllocationSpec{
		"10.2.0.10": {Pool: "new-form", Phase: api.PhaseAllocated, Owner: owner(web, "c-web", "eth0", "fairlead", false)},
		"10.2.0.14": {Pool: "new-form", Phase: api.PhaseAllocated, Owner: owner(second, "c-second", "net1", "storage", true)},
		"10.3.0.5": {Pool: "old-form", Phase: api.PhaseAllocated, Owner: owner(db, "c-db", "eth0", "fairlead", false),
			Reservation: kept(0)},
		"10.3.0.6": {Pool: "old-form", Phase: api.PhaseReserved, Reservation: kept(1)},
	} {
		a, err := c.store().Get(t.Context(), address)
		c.must(err)
		want.Address = address
		if !reflect.DeepEqual(a.Spec, want) {
			t.Errorf("%s is\n%+v, want\n%+v", address, a.Spec, want)
		}
	}
	if list := c.addresses(); len(list) != 4 {
		t.Errorf("there are %v", list)
	}
	if p, err := c.client.Dynamic.Resource(api.PoolResource).Get(t.Context(), "old-form", metav1.GetOptions{}); err != nil {
		t.Error(err)
	} else if l, _, _ := unstructured.NestedSlice(p.Object, "status", "ipAddresses"); len(l) != 4 {
		t.Errorf("Antrea's data is no more: %v", l)
	}
}

func (c *fixture) addresses() (out []string) {
	c.t.Helper()
	list, err := c.client.Dynamic.Resource(api.AllocationResource).List(c.t.Context(), metav1.ListOptions{})
	c.must(err)
	for _, a := range list.Items {
		out = append(out, a.GetName())
	}
	return out
}

// Another pod of the same name, an address that a pod of Fairlead has, and a Pod that is deleted during the import: no
// pod loses an address, and no address is left without an owner.
func TestKubeImportAntreaRaces(t *testing.T) {
	c := newFixture(t)
	t.Cleanup(c.removeFinalizers)
	c.pool("p")
	c.node("n1", corev1.ConditionTrue)
	c.hold("10.2.0.10", c.pod("other", "n1", "10.2.0.10"))
	c.pod("thief", "n1", "10.2.0.10")
	c.pod("web", "n1", "10.2.0.11")
	c.antreas("p", ofPod("10.2.0.10", "thief", "c", ""), ofPod("10.2.0.11", "web", "c", ""))
	got, _ := c.outcomes("--dry-run")
	if got["p 10.2.0.11"] != "new" || !strings.Contains(got["p 10.2.0.10"], "is allocated to pod default/other") {
		t.Errorf("%v", got)
	}
	results, err := antrea.Plan(t.Context(), c.client, "fairlead")
	c.must(err)
	c.deletePod("web")
	c.pod("web", "n1", "10.2.0.11") // another Pod
	for i, r := range results {
		if r.Address != "10.2.0.11" {
			continue
		}
		c.must(results[i].Import(t.Context(), c.client))
		if results[i].Outcome != antrea.Refused || results[i].Why != "the Pod was deleted in the meantime" {
			t.Errorf("%+v", results[i])
		}
	}
	if _, err := c.store().Get(t.Context(), "10.2.0.11"); err == nil {
		t.Error("10.2.0.11 is allocated to a Pod that is gone")
	}
}

// Antrea's CRD of IPPool is replaced by Fairlead's, with all pools, however it was installed.
func TestKubeAntreasDefinition(t *testing.T) {
	const definition = `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: ippools.crd.antrea.io},
		spec: {group: crd.antrea.io, scope: Cluster, names: {kind: IPPool, plural: ippools, singular: ippool, shortNames: [ipp]},
		conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1, v1beta1],
		clientConfig: {service: {name: antrea, namespace: kube-system, path: /convert/ippool}}}},
		versions: [{name: v1beta1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object,
		x-kubernetes-preserve-unknown-fields: true}}},
		{name: v1alpha2, served: true, storage: false, deprecated: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object,
		x-kubernetes-preserve-unknown-fields: true}}}]}}`
	for _, how := range []string{"apply", "create"} { // with and without kubectl's last-applied annotation
		t.Run(how, func(t *testing.T) {
			c := newFixture(t)
			t.Cleanup(c.removeFinalizers)
			c.must(c.s.Objects().Remove(t.Context(), apitest.Definitions, "", "ippools.crd.antrea.io"))
			c.kubectlStdin(how, definition)
			c.until(func() string {
				_, err := c.client.Dynamic.Resource(api.PoolResource).List(t.Context(), metav1.ListOptions{})
				if apierrors.IsNotFound(err) {
					return err.Error()
				}
				c.must(err)
				return ""
			})
			c.pool("p")
			c.antreas("p", ofPod("10.2.0.11", "web", "c", ""))
			// As users do: how the old webhook is removed depends on how kubectl applies.
			c.must(c.s.Kubectl(t.Context(), "apply", "-f", "../build/manifests/fairlead.yaml", "-l", "app.kubernetes.io/component=crds"))
			c.until(func() string { // the API server takes a moment to update
				got, _ := c.outcomes("--dry-run")
				if got["p 10.2.0.11"] != "refused: the Pod no longer exists" {
					return fmt.Sprint(got)
				}
				return ""
			})
			// In the other version as well: no webhook is called.
			old := api.PoolResource
			old.Version = api.PoolVersionBefore
			_, err := c.client.Dynamic.Resource(old).Get(t.Context(), "p", metav1.GetOptions{})
			c.must(err)
		})
	}
}

func (c *fixture) kubectlStdin(verb, manifest string) {
	c.t.Helper()
	file := c.t.TempDir() + "/m.yaml"
	c.must(os.WriteFile(file, []byte(manifest), 0o600))
	c.must(c.s.Kubectl(c.t.Context(), verb, "-f", file))
}
