package manifest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/api"
)

const twoPods = `# two pods and what they need
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  nodeName: node1
  containers: [{name: c, image: nginx, ports: [{containerPort: 80, hostPort: 8080}]}]
---
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "db"}, "spec": {"nodeName": "node2", "containers": []}}
`

func TestParse(t *testing.T) {
	objects, err := Parse("x.yaml", []byte(twoPods))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range objects {
		got = append(got, RefOf(o).String())
	}
	if want := []string{"namespace/shop", "pod/shop/web", "pod/default/db"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if pod := objects[1].(*corev1.Pod); pod.Spec.Containers[0].Ports[0].HostPort != 8080 {
		t.Errorf("the pod lost its port: %+v", pod.Spec)
	}
}

// Both versions of an IPPool are stored as they were written.
func TestPools(t *testing.T) {
	const before = "apiVersion: crd.antrea.io/v1alpha2\nkind: IPPool\nmetadata: {name: p}\n" +
		"spec:\n  ipVersion: 4\n  ipRanges: [{start: 192.0.2.5, end: 192.0.2.9, gateway: 192.0.2.1, prefixLength: 24, vlan: 10}]\n"
	const now = "apiVersion: crd.antrea.io/v1beta1\nkind: IPPool\nmetadata: {name: q}\n" +
		"spec:\n  ipRanges: [{cidr: 192.0.2.64/26}]\n  subnetInfo: {gateway: 192.0.2.1, prefixLength: 24, vlan: 20}\n"
	s := openTemp(t)
	apply(t, s, before+"---\n"+now, "ippool/p created", "ippool/q created")
	apply(t, s, before, "ippool/p unchanged")
	o, err := s.Get(Ref{"IPPool", "", "p"})
	if err != nil {
		t.Fatal(err)
	}
	p := o.(*api.IPPool)
	if p.APIVersion != "crd.antrea.io/v1alpha2" || p.Spec.IPVersion != 4 || p.Spec.IPRanges[0].VLAN != 10 || p.UID == "" {
		t.Errorf("stored as %+v", p)
	}
	if _, err := s.Delete(parse(t, now)); err != nil {
		t.Error(err)
	}
}

func TestParseRefuses(t *testing.T) {
	pod := func(meta string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: " + meta + "\nspec: {containers: []}\n"
	}
	for name, c := range map[string]struct{ in, want string }{
		"nothing":  {"# nothing\n---\n", "no object"},
		"bad YAML": {"apiVersion: v1\nkind: [Pod\n", "line "},
		"a list":   {"- a\n- b\n", "not a Kubernetes object"},
		"no kind":  {"apiVersion: v1\nmetadata: {name: a}\n", "kind is missing"},
		"unknown kind": {twoPods + "---\napiVersion: v1\nkind: Secret\nmetadata: {name: a}\n",
			"document 5 (line 15): unknown kind v1 Secret"},
		"wrong version":  {"apiVersion: v2\nkind: Pod\nmetadata: {name: a}\n", "unknown kind v2 Pod"},
		"no name":        {pod("{namespace: a}"), "metadata.name is missing"},
		"bad name":       {pod("{name: A_b}"), `metadata.name "A_b"`},
		"path as name":   {pod("{name: ../a}"), "metadata.name"},
		"bad namespace":  {pod("{name: a, namespace: a/b}"), "metadata.namespace"},
		"long name":      {pod("{name: " + strings.Repeat("a", 171) + "}"), "171 characters"},
		"node namespace": {"apiVersion: v1\nkind: Node\nmetadata: {name: a, namespace: b}\n", "have no metadata.namespace"},
		"other group":    {"apiVersion: v1\nkind: IPPool\nmetadata: {name: a}\n", "unknown kind v1 IPPool"},
		"misspelt range": {"apiVersion: crd.antrea.io/v1beta1\nkind: IPPool\nmetadata: {name: a}\nspec: {ipRange: []}\n",
			`unknown field "spec.ipRange"`},
		"misspelt key": {"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {nodename: b}\n",
			`unknown field "spec.nodename"`},
		"key twice":  {"apiVersion: v1\nkind: Pod\nkind: Node\nmetadata: {name: a}\n", "already set"},
		"wrong type": {"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {nodeName: [1]}\n", "nodeName"},
		"object twice": {pod("{name: a}") + "---\n" + pod("{name: a, namespace: default}"),
			"pod/default/a is in it twice"},
		"good before evil": {twoPods + "---\n:", "document 5"},
	} {
		objects, err := Parse("x.yaml", []byte(c.in))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "x.yaml: ") {
			t.Errorf("%s: got %v, %v, want an error with %q", name, objects, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(twoPods))
	f.Add([]byte("apiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec: {podCIDRs: [10.0.0.0/24]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, err := Parse("fuzz", data)
		if (err == nil) == (len(objects) == 0) {
			t.Fatalf("%d objects and error %v", len(objects), err)
		}
		s := Open("/store", "/tmp")
		for _, o := range objects {
			if path := s.path(RefOf(o)); filepath.Dir(path) != "/store" || len(filepath.Base(path)) > 255 {
				t.Fatalf("%s would be stored in %q", RefOf(o), path)
			}
		}
	})
}

func openTemp(t *testing.T) Store {
	dir := t.TempDir()
	for _, d := range []string{"manifests", "tmp"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return Open(filepath.Join(dir, "manifests"), filepath.Join(dir, "tmp"))
}

func parse(t *testing.T, text string) []Object {
	t.Helper()
	objects, err := Parse("test", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func apply(t *testing.T, s Store, text string, want ...string) {
	t.Helper()
	changes, err := s.Apply(parse(t, text))
	if err != nil {
		t.Fatal(err)
	}
	check(t, changes, want)
}

func check(t *testing.T, changes []Change, want []string) {
	t.Helper()
	var got []string
	for _, c := range changes {
		got = append(got, c.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestStore(t *testing.T) {
	s := openTemp(t)
	apply(t, s, twoPods, "namespace/shop created", "pod/shop/web created", "pod/default/db created")
	pods, err := s.Pods()
	if err != nil || len(pods) != 2 || pods[0].Name != "db" || pods[1].Name != "web" {
		t.Fatalf("pods %v, %v", pods, err)
	}
	uid := pods[1].UID
	if uid == "" || uid == pods[0].UID || pods[1].CreationTimestamp.IsZero() {
		t.Errorf("UIDs %q, %q, created %v", uid, pods[0].UID, pods[1].CreationTimestamp)
	}

	apply(t, s, twoPods, "namespace/shop unchanged", "pod/shop/web unchanged", "pod/default/db unchanged")
	const annotated = "apiVersion: v1\nkind: Pod\n" +
		"metadata: {name: web, namespace: shop, annotations: {a: b}}\nspec: {nodeName: node1, containers: []}\n"
	apply(t, s, annotated, "pod/shop/web configured")
	pods, err = s.Pods()
	if err != nil || pods[1].UID != uid || pods[1].Annotations["a"] != "b" {
		t.Errorf("after the change: %+v, %v; want UID %s kept", pods[1], err, uid)
	}

	changes, err := s.Delete(parse(t, annotated))
	if err != nil {
		t.Fatal(err)
	}
	check(t, changes, []string{"pod/shop/web deleted"})
	changes, err = s.Delete(parse(t, twoPods))
	if err != nil {
		t.Fatal(err)
	}
	check(t, changes, []string{"namespace/shop deleted", "pod/shop/web not found", "pod/default/db deleted"})
	apply(t, s, annotated, "pod/shop/web created")
	if pods, err = s.Pods(); err != nil || pods[0].UID == uid {
		t.Errorf("a pod made again has its old UID %s (%v)", uid, err)
	}
	if rest, _ := os.ReadDir(s.tmp); len(rest) > 0 {
		t.Errorf("left in the directory for temporary files: %v", rest)
	}
}

func TestApplyRefusesAMoveAndStoresNothing(t *testing.T) {
	s := openTemp(t)
	apply(t, s, twoPods, "namespace/shop created", "pod/shop/web created", "pod/default/db created")
	moved := "apiVersion: v1\nkind: Namespace\nmetadata: {name: fresh}\n---\n" +
		"apiVersion: v1\nkind: Pod\nmetadata: {name: db}\nspec: {nodeName: node1, containers: []}\n"
	_, err := s.Apply(parse(t, moved))
	if err == nil || !strings.Contains(err.Error(), "pod/default/db is on node node2") {
		t.Errorf("got %v, want the refusal of a move", err)
	}
	twice := append(parse(t, moved)[:1], parse(t, moved)[0])
	if _, err := s.Apply(twice); err == nil || !strings.Contains(err.Error(), "namespace/fresh is given twice") {
		t.Errorf("got %v, want the refusal of an object that comes twice, as from two files", err)
	}
	if o, err := s.Get(Ref{"Namespace", "", "fresh"}); o != nil || err != nil {
		t.Errorf("the object beside the refused one was stored: %v, %v", o, err)
	}
}
