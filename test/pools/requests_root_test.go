package pools

import (
	"fmt"
	"maps"
	"net/http"
	"testing"
	"time"
)

// A bridged pod costs one write per address when it is created, and one, which starts the cooling, when it is deleted;
// a routed pod costs none. The agent counts them.
func TestRootWritesPerPod(t *testing.T) {
	b := cluster(t)
	b.apply(t, poolYAML("counted4", 4, 10, "110", "119"), poolYAML("counted6", 6, 10, "1000", "100f"))
	for _, c := range []struct {
		name        string
		annotations []string
		addresses   int
	}{
		{"routed", nil, 0},
		{"bridged", []string{"ippools: counted4"}, 1},
		{"dual", []string{`ippools: "counted4,counted6"`}, 2},
	} {
		before := b.writes(t)
		b.apply(t, podYAML(c.name, node, c.annotations...))
		b.running(t, c.name)
		b.wrote(t, "ADD of "+c.name, before, http.MethodPost, c.addresses)
		before = b.writes(t)
		b.remove(t, c.name)
		b.wrote(t, "DEL of "+c.name, before, http.MethodPut, c.addresses)
	}
}

// wrote waits for this number of writes of one method, and a second for unexpected ones.
func (b *bed) wrote(t *testing.T, what string, before map[string]int, method string, many int) {
	t.Helper()
	want := maps.Clone(before)
	want[method] += many
	wrong := func() string {
		if now := b.writes(t); fmt.Sprint(now) != fmt.Sprint(want) {
			return fmt.Sprintf("%s: the agent's writes were %v and are %v, want %v", what, before, now, want)
		}
		return ""
	}
	wait(t, 10*time.Second, wrong)
	time.Sleep(time.Second)
	if w := wrong(); w != "" {
		t.Error(w)
	}
}

// writes are the agent's write requests, by method.
func (b *bed) writes(t *testing.T) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		out[method] = int(b.metric(t, fmt.Sprintf("fairlead_api_requests_total{method=%q}", method)))
	}
	return out
}
