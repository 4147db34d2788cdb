package functions

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-cni/fairlead/test/chart"
	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
	"github.com/fairlead-cni/fairlead/test/kubebin"
)

// rights are permissions of Fairlead's service accounts, or requests they made: "ACCOUNT VERB GROUP/RESOURCE".
type rights map[string]bool

// The requests of agent and controller to the API server, over all clusters of these tests, match their permissions:
// none was forbidden, and no permission is unused, except those that seldom() explains.
func (asked rights) compare(t *testing.T) {
	granted, seldom := granted(t), seldom()
	for _, right := range slices.Sorted(maps.Keys(granted)) {
		if !asked[right] && seldom[right] == "" {
			t.Errorf("granted, and not used: %s", right)
		}
	}
	for right := range seldom {
		if !granted[right] {
			t.Errorf("explained, and not granted: %s", right)
		}
	}
	for _, right := range slices.Sorted(maps.Keys(asked)) {
		if !granted[right] {
			t.Errorf("asked, and granted by no rule of Fairlead: %s", right)
		}
	}
}

// seldom are the permissions that these tests do not have to use, with their purpose.
func seldom() map[string]string {
	out := map[string]string{}
	for what, names := range map[string][]string{
		"API servers that do not stream lists": {
			"fairlead-agent list /nodes", "fairlead-agent list crd.antrea.io/ippools",
			"fairlead-agent list networking.k8s.io/networkpolicies",
			"fairlead-agent list /services", "fairlead-agent list discovery.k8s.io/endpointslices",
			"fairlead-controller list /namespaces", "fairlead-controller list apps/statefulsets",
			"fairlead-controller list crd.antrea.io/ippools", "fairlead-controller list ipam.fairlead.dev/podcidrclaims",
			"fairlead-controller list ipam.fairlead.dev/podcidrranges"},
		"an ADD before the watch has its pod, Namespace or pool": {
			"fairlead-agent get /pods", "fairlead-agent get /namespaces", "fairlead-agent get crd.antrea.io/ippools"},
		"two at the same address at the same time, or an answer that was lost": {
			"fairlead-agent get ipam.fairlead.dev/ipallocations", "fairlead-agent delete ipam.fairlead.dev/ipallocations",
			"fairlead-controller get ipam.fairlead.dev/podcidrclaims", "fairlead-controller delete ipam.fairlead.dev/podcidrclaims",
			"fairlead-controller get /nodes"},
		"whose address it is that is kept, of Deployments and StatefulSets with ordinals of their own": {
			"fairlead-agent get apps/replicasets", "fairlead-agent get apps/statefulsets",
			"fairlead-controller get apps/deployments", "fairlead-controller get apps/replicasets",
			"fairlead-controller get apps/statefulsets", "fairlead-controller get /pods"},
		"addresses of nodes that are gone, and of StatefulSets that are deleted": {
			"fairlead-controller get ipam.fairlead.dev/ipallocations",
			"fairlead-controller delete ipam.fairlead.dev/ipallocations",
			"fairlead-controller update ipam.fairlead.dev/ipallocations"},
		"a range that is taken out of the config":                             {"fairlead-controller delete ipam.fairlead.dev/podcidrranges"},
		"an uninstallation that was interrupted":                              {"fairlead-controller delete apps/daemonsets"},
		"an Event that repeats":                                               {"fairlead-controller patch /events", "fairlead-agent patch /events"},
		"whether kube-controller-manager runs, where its Pod does not say so": {"fairlead-agent get coordination.k8s.io/leases"},
	} {
		for _, name := range names {
			out[name] = what
		}
	}
	return out
}

// granted are the permissions in the chart's Roles and ClusterRoles. A Role is named as its service account.
func granted(t *testing.T) rights {
	t.Helper()
	dir, err := kubebin.Find("build/charts/fairlead")
	cluster.Must(t, err)
	manifests, _, err := chart.Template(dir, "kube-system")
	cluster.Must(t, err)
	out := rights{}
	for _, doc := range strings.Split(manifests, "\n---\n") {
		var role rbacv1.ClusterRole // a Role has the same rules
		cluster.Must(t, yaml.Unmarshal([]byte(doc), &role))
		if role.Kind != "Role" && role.Kind != "ClusterRole" {
			continue
		}
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						out[role.Name+" "+verb+" "+group+"/"+resource] = true
					}
				}
			}
		}
	}
	if len(out) == 0 {
		t.Fatal("the chart grants nothing")
	}
	return out
}

// event is the part that is compared of a line of the audit log (audit.k8s.io/v1 Event).
type event struct {
	Verb string `json:"verb"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef *struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		APIGroup    string `json:"apiGroup"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	Annotations map[string]string `json:"annotations"`
}

// add reads an audit log. A request of Fairlead's accounts that the API server has forbidden fails the test.
func (asked rights) add(t *testing.T, auditLog string) {
	t.Helper()
	const account = "system:serviceaccount:kube-system:"
	log, err := os.ReadFile(auditLog)
	cluster.Must(t, err)
	refused := map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(log))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // the line that was cut short when the API server was killed
		}
		name, ours := strings.CutPrefix(e.User.Username, account+"fairlead-")
		if !ours || e.ObjectRef == nil {
			continue
		}
		resource := e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			resource += "/" + e.ObjectRef.Subresource
		}
		what := "fairlead-" + name + " " + e.Verb + " " + e.ObjectRef.APIGroup + "/" + resource
		if e.Annotations["authorization.k8s.io/decision"] == "forbid" {
			refused[what+" "+e.ObjectRef.Namespace+"/"+e.ObjectRef.Name] = true
		} else if strings.Contains(e.Annotations["authorization.k8s.io/reason"], `ClusterRole "fairlead-`) ||
			strings.Contains(e.Annotations["authorization.k8s.io/reason"], `Role "fairlead-`) {
			asked[what] = true
		}
	}
	cluster.Must(t, lines.Err())
	for _, r := range slices.Sorted(maps.Keys(refused)) {
		t.Errorf("asked, and refused: %s", r)
	}
}
