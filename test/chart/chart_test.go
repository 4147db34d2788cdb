package chart

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v3/pkg/release"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
)

const (
	chartDir = "../../build/charts/fairlead"
	manifest = "../../build/manifests/fairlead.yaml"
	docs     = "../../docs/install.md"
)

var update = flag.Bool("update", false, "write the manifest, the schema and the table of values")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(m.Run())
}

// golden compares a generated file with its current source.
func golden(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err == nil && string(got) == want {
		return
	}
	if !*update {
		t.Errorf("%s is not what the chart makes: make manifests (%v)", path, err)
		return
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func template(t *testing.T, sets ...string) string {
	t.Helper()
	out, _, err := Template(chartDir, "kube-system", sets...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// The plain manifest is the chart rendered with its default values.
func TestManifest(t *testing.T) {
	golden(t, manifest, `# Fairlead, all of it: kubectl apply -f fairlead.yaml. docs/install.md says how, and what to change before.
# Written by "make manifests" from build/charts/fairlead: change it there.
#
# Parts of it, by label: kubectl apply -f fairlead.yaml -l app.kubernetes.io/component=crds (or policy, rbac, config,
# agent, ovs, controller). To delete the part crds is to delete every IPPool and all that is known of who has which
# address: it is refused as long as the part policy is there.
`+template(t))
}

// value is one line of the table of values.
type value struct{ key, initial, text string }

// values are those of values.yaml with their comments.
func values(t *testing.T) (out []value) {
	t.Helper()
	text, err := os.ReadFile(chartDir + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	var walk func(prefix string, n *yaml.Node)
	walk = func(prefix string, n *yaml.Node) {
		for i := 0; i < len(n.Content); i += 2 {
			k, v := n.Content[i], n.Content[i+1]
			if k.HeadComment == "" && v.Kind == yaml.MappingNode && v.Style != yaml.FlowStyle {
				walk(prefix+k.Value+".", v)
				continue
			}
			comment := strings.Join(strings.Fields(strings.ReplaceAll(k.HeadComment, "#", "")), " ")
			if _, after, found := strings.Cut(comment, "refuses any other. "); found { // the head of the file
				comment = after
			}
			if comment == "" {
				t.Errorf("values.yaml: %s%s has no comment", prefix, k.Value)
			}
			out = append(out, value{prefix + k.Value, initial(v), comment})
		}
	}
	walk("", doc.Content[0])
	return out
}

// initial is a default as the table shows it.
func initial(v *yaml.Node) string {
	if v.Kind == yaml.ScalarNode {
		if v.Value == "" {
			return `""`
		}
		return v.Value
	}
	if len(v.Content) == 0 {
		return map[yaml.Kind]string{yaml.MappingNode: "{}", yaml.SequenceNode: "[]"}[v.Kind]
	}
	return "see values.yaml"
}

// The table of docs/install.md matches values.yaml.
func TestDocs(t *testing.T) {
	table := "| value | default | what it is |\n| --- | --- | --- |\n"
	for _, v := range values(t) {
		table += "| `" + v.key + "` | `" + v.initial + "` | " + v.text + " |\n"
	}
	table = strings.ReplaceAll(table, "`see values.yaml`", "[values.yaml](../build/charts/fairlead/values.yaml)")
	text, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	section := regexp.MustCompile(`(?s)(<!-- begin values:[^>]*-->\n).*(<!-- end values -->)`)
	if !section.Match(text) {
		t.Fatalf("%s has no section of values", docs)
	}
	golden(t, docs, string(section.ReplaceAll(text, []byte("${1}\n"+strings.ReplaceAll(table, "$", "$$")+"\n${2}"))))
}

// The notes that Helm prints state whether policies are enforced, as they are by default.
func TestNotes(t *testing.T) {
	for set, want := range map[string]string{"": "NetworkPolicies are enforced.",
		"agent.config=null":                    "NetworkPolicies are enforced.",
		"agent.config.networkPolicies=enforce": "NetworkPolicies are enforced.",
		"agent.config.networkPolicies=report":  "NetworkPolicies are not enforced"} {
		notes, err := Notes(chartDir, "kube-system", set)
		if err != nil || !strings.Contains(notes, want) {
			t.Errorf("--set=%s: %v, want %q in\n%s", set, err, want, notes)
		}
	}
}

// Agents probe each other by default, but not if a selector leaves nodes without an agent. The network namespaces that
// they create for it outlive their container only if the mount is shared.
func TestReachability(t *testing.T) {
	for set, probes := range map[string]bool{"": true, "agent.config.reachability=probe": true,
		"agent.nodeSelector.kubernetes\\.io/os=linux": true, "agent.config.reachability=none": false,
		"agent.nodeSelector.pool=a":                                false,
		"agent.nodeSelector.pool=a,agent.config.reachability=none": false} {
		manifests := template(t, set)
		none := strings.Contains(manifests, "\n    reachability: none\n")
		shared := strings.Contains(manifests, "mountPath: /run/netns, mountPropagation: Bidirectional}")
		if none == probes || shared != probes {
			t.Errorf("--set=%s: none %t, shared mount %t, want agents that probe: %t", set, none, shared, probes)
		}
	}
}

// Rendered objects decode strictly as their Kubernetes types, whichever values are set.
func TestObjects(t *testing.T) {
	for name, sets := range map[string][]string{
		"defaults": nil,
		"everything": {"rbac.kubevirt=true,image.pullSecrets={a,b},agent.maxUnavailable=10%,logVerbosity=4",
			"agent.podAnnotations.a=b,ovs.podAnnotations.a=b,controller.podAnnotations.a=b,agent.nodeSelector.a=b",
			"controller.tolerations[0].operator=Exists",
			"agent.config.cniSocket=/run/other/cni.sock,agent.config.ovsRunDir=/run/ovs,agent.config.apiPort=10360"},
		"little": {"ovs.enabled=false,controller.enabled=false,crds.install=false,ipPoolPolicy.install=false",
			"uninstall.restoreNodes=false"},
		"keys that are all commented out": {"agent.config=null,controller.config=null"},
	} {
		decoder := serializer.NewCodecFactory(kubescheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
		for _, doc := range strings.Split(template(t, sets...), "\n---\n") {
			var kind struct{ APIVersion string }
			if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
				t.Fatalf("%s: %v in %s", name, err, doc)
			}
			if strings.HasPrefix(kind.APIVersion, "apiextensions.k8s.io/") || kind.APIVersion == "" {
				continue // an API server validates these in other tests
			}
			if _, _, err := decoder.Decode([]byte(doc), nil, nil); err != nil {
				t.Errorf("%s: %v in\n%s", name, err, doc)
			}
		}
	}
}

// The hooks of "helm uninstall" are not in the manifests, are well formed, and run before anything is deleted.
func TestHooks(t *testing.T) {
	manifests, _ := uninstallJob(t, "kubeAPIServerOverride=192.0.2.1:6443")
	if strings.Contains(manifests, "name: fairlead-uninstall") {
		t.Error("the manifests have the Job that uninstalls")
	}
	if _, hooks, err := Template(chartDir, "kube-system", "uninstall.restoreNodes=false"); err != nil || len(hooks) > 0 {
		t.Errorf("switched off: %d hooks, %v", len(hooks), err)
	}
}

// uninstallJob is the Job among the hooks, and the manifests beside them. It checks that each hook runs before the
// deletion, and decodes strictly.
func uninstallJob(t *testing.T, sets ...string) (manifests string, job *batchv1.Job) {
	t.Helper()
	manifests, hooks, err := Template(chartDir, "kube-system", sets...)
	if err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(kubescheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	jobs := 0
	for _, h := range hooks {
		if len(h.Events) != 1 || h.Events[0] != release.HookPreDelete {
			t.Errorf("%s %s runs at %v", h.Kind, h.Name, h.Events)
		}
		object, _, err := decoder.Decode([]byte(h.Manifest), nil, nil)
		if err != nil {
			t.Errorf("%v in\n%s", err, h.Manifest)
		}
		if j, ok := object.(*batchv1.Job); ok {
			job = j
			jobs++
		}
	}
	if jobs != 1 {
		t.Fatalf("there are %d jobs", jobs)
	}
	return manifests, job
}

// The Job reaches the API server as the agents do.
func TestHookCommand(t *testing.T) {
	const base = "fairleadctl uninstall --yes --wait=4m --helm-release=fairlead"
	for set, want := range map[string]string{"": base,
		"kubeAPIServerOverride=192.0.2.1:6443":              base + " --server=192.0.2.1:6443",
		"agent.config.kubeAPIServerOverride=192.0.2.2:6443": base + " --server=192.0.2.2:6443"} {
		_, job := uninstallJob(t, set)
		c := job.Spec.Template.Spec.Containers[0]
		if said := strings.Join(append(c.Command, c.Args...), " "); said != want {
			t.Errorf("--set=%s: it runs %s, want %s", set, said, want)
		}
	}
}

// The Job is not scheduled onto a node that does not answer, where it could not complete, and stays on one that is
// NotReady since it was restored.
func TestHookNodes(t *testing.T) {
	for _, set := range []string{"", "controller.tolerations=null", "controller.tolerations[0].key=node.kubernetes.io/not-ready," +
		"controller.tolerations[0].operator=Exists,controller.tolerations[0].tolerationSeconds=1"} {
		_, job := uninstallJob(t, set)
		for _, c := range []struct {
			key    string
			effect corev1.TaintEffect
			want   string
		}{{corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule, "no"},
			{corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule, "yes"},
			{corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute, "yes"},
			{corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule, "yes"},
			{corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule, "yes"}} {
			got := "no"
			for _, tol := range job.Spec.Template.Spec.Tolerations {
				if !tol.ToleratesTaint(klog.Background(), &corev1.Taint{Key: c.key, Effect: c.effect}, false) {
					continue
				}
				got = "yes"
				if tol.TolerationSeconds != nil { // the shortest of all that match counts
					got = "for a while"
					break
				}
			}
			if got != c.want {
				t.Errorf("--set=%s: it tolerates %s:%s: %s, want %s", set, c.key, c.effect, got, c.want)
			}
		}
	}
}

// Helm waits 5 minutes for the Job, which has ended with its message by then, and deletes nothing after Helm has given
// up.
func TestHookEnds(t *testing.T) {
	for _, c := range []struct {
		timeout string
		least   time.Duration
	}{{"4m", 4 * time.Minute}, {"1h30m", 90 * time.Minute}, {"90s", 90 * time.Second}} {
		_, job := uninstallJob(t, "uninstall.timeout="+c.timeout)
		if job.Spec.BackoffLimit == nil || *job.Spec.BackoffLimit != 0 || job.Spec.ActiveDeadlineSeconds == nil {
			t.Errorf("%s: attempts after the first: %v, deadline %v", c.timeout, job.Spec.BackoffLimit, job.Spec.ActiveDeadlineSeconds)
			continue
		}
		// Its Pod has to start before the command's own timeout begins, and is deleted with its log at the deadline.
		ends := time.Duration(*job.Spec.ActiveDeadlineSeconds) * time.Second
		if ends < c.least+30*time.Second || ends >= c.least+time.Minute {
			t.Errorf("%s: it ends after %v", c.timeout, ends)
		}
	}
}

// Invalid values are reported, each in a sentence that names the value.
func TestInvalidInput(t *testing.T) {
	for _, c := range []struct{ set, want string }{
		{"imag.tag=x", "imag"},
		{"agent.config.enableBridgeMode=true", "enableBridgeMode"},
		{"agent.config.tunnelPort=70000", "/agent/config/tunnelPort"},
		{"agent.config.trafficEncapMode=networkPolicyOnly", "/agent/config/trafficEncapMode"},
		{"agent.config.trafficEncryptionMode=wireGuard", "/agent/config/trafficEncryptionMode"},
		{"agent.config.featureGates.AntreaPolicy=true", "/agent/config/featureGates/AntreaPolicy"},
		{"agent.config.uplink.mode=none", "/agent/config/uplink/mode"},
		{"agent.config.podCIDRWait=10", "/agent/config/podCIDRWait"},
		{"agent.config.defaultMTU=big", "/agent/config/defaultMTU"},
		{"agent.maxUnavailable=0", "/agent/maxUnavailable"},
		{"agent.cniBinDir=opt", "/agent/cniBinDir"},
		{"controller.config.nodeIPAM.nodeCIDRMaskSizeIPv4=8", "nodeCIDRMaskSizeIPv4"},
		{"controller.config.nodeIPAM.clusterCIDRs={10.0.0.0}", "/controller/config/nodeIPAM/clusterCIDRs/0"},
		{"controller.replicas=0", "/controller/replicas"},
		{"image.repository=a:b", "/image/repository"},
		{"image.pullPolicy=Sometimes", "/image/pullPolicy"},
		{"uninstall.timeout=forever", "/uninstall/timeout"},
		{"agent.tolerations[0].operater=Exists", "operater"},
		{"agent.config.noSNAT=true", "noSNAT: true needs agent.config.trafficEncapMode: noEncap"},
		{"agent.config.reachability=probe,agent.nodeSelector.pool=a", "agents probe all nodes that have a podCIDR"},
		{"agent.config.manifestsDir=/x", "agents in a cluster read the Kubernetes API"},
		{"kubeAPIServerOverride=a,agent.config.kubeAPIServerOverride=b", "set one of them"},
		{"controller.config.nodeIPAM.enableNodeIPAM=true", "needs clusterCIDRs as well"},
		{"controller.enabled=false,controller.config.nodeIPAM.enableNodeIPAM=true," +
			"controller.config.nodeIPAM.clusterCIDRs={10.0.0.0/16}", "needs controller.enabled: true"},
		{"controller.config.apiPort=10350", "are both 10350, on the same nodes: change one"},
	} {
		_, _, err := Template(chartDir, "kube-system", c.set)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.set, err, c.want)
			continue
		}
		t.Logf("%s: %v", c.set, err)
	}
	_, _, err := Template(chartDir, "default")
	if err == nil || !strings.Contains(err.Error(), "Fairlead must be installed in the namespace kube-system, not in default") {
		t.Errorf("in another namespace: %v", err)
	}
}
