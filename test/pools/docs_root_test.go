package pools

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

// The manifests in docs/ip-pools.md are accepted and do what the page describes. Their VLANs are not those of the lab:
// the pods have addresses, and no peers to reach.
func TestRootManifestsOfTheDocs(t *testing.T) {
	b := cluster(t)
	page, err := os.ReadFile("../../docs/ip-pools.md")
	must(t, err)
	pods := 0
	for _, block := range strings.Split(string(page), "```yaml\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		for _, doc := range strings.Split(block, "---\n") {
			var object map[string]any
			must(t, yaml.Unmarshal([]byte(doc), &object))
			switch object["kind"] {
			case nil: // the agent's config
				continue
			case "Pod": // the lab has no scheduler
				object["spec"].(map[string]any)["nodeName"] = node
				pods++
			}
			data, err := yaml.Marshal(object)
			must(t, err)
			b.apply(t, string(data))
		}
	}
	if pods != 3 {
		t.Fatalf("the page has %d Pods, and this test knows 3", pods)
	}
	for pod, want := range map[string]string{"pod1": "10.4.0.", "pod2": "10.4.0.42", "namespace1/pod3": "10.2.0.17"} {
		if got := fmt.Sprint(b.running(t, pod)); !strings.HasPrefix(got, "["+want) {
			t.Errorf("%s has %s, want %s", pod, got, want)
		}
	}
	b.holdsExactly(t, 5*time.Second, "pod1", "pod2", "namespace1/pod3")
	ctx := labtest.Within(t, 20*time.Second)
	must(t, b.client.AppsV1().StatefulSets("default").DeleteCollection(ctx, background(), metav1.ListOptions{}))
	b.remove(t, "pod1", "pod2", "namespace1/pod3")
	must(t, b.client.CoreV1().Namespaces().Delete(ctx, "namespace1", metav1.DeleteOptions{}))
}
