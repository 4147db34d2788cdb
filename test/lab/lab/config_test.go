package lab

import (
	"reflect"
	"strings"
	"testing"
)

func TestMergeConfig(t *testing.T) {
	base := func() map[string]any {
		return map[string]any{"ovsDatapathType": "netdev", "nested": map[string]any{"a": 1, "b": 2}}
	}
	for name, c := range map[string]struct {
		user string
		want map[string]any
	}{
		"empty":        {"", base()},
		"only comment": {"# nothing\n", base()},
		"new key": {"tunnelType: vxlan",
			map[string]any{"ovsDatapathType": "netdev", "nested": base()["nested"], "tunnelType": "vxlan"}},
		"replaced": {"ovsDatapathType: system\nnested: {b: [3]}",
			map[string]any{"ovsDatapathType": "system", "nested": map[string]any{"a": 1, "b": []any{3}}}},
		"taken away": {"ovsDatapathType: null\nnested: null", map[string]any{}},
		"other type": {"nested: text", map[string]any{"ovsDatapathType": "netdev", "nested": "text"}},
	} {
		before := base()
		got, err := mergeConfig(before, []byte(c.user))
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %v, %v\nwant %v", name, got, err, c.want)
		}
		if !reflect.DeepEqual(before, base()) {
			t.Errorf("%s: the base was changed: %v", name, before)
		}
	}
	for name, user := range map[string]string{
		"a list": "- a\n", "bad YAML": "a: [", "a key twice": "a: 1\na: 2\n", "two documents": "a: 1\n---\nb: 2\n",
	} {
		if got, err := mergeConfig(base(), []byte(user)); err == nil {
			t.Errorf("%s: got %v, want an error", name, got)
		}
	}
}

func TestAPIPort(t *testing.T) {
	if got := apiPort(map[string]any{"apiPort": 9}); got != 9 {
		t.Errorf("got %d, want the configured 9", got)
	}
	if got := apiPort(map[string]any{}); got != 10350 {
		t.Errorf("got %d, want the default 10350", got)
	}
}

func TestOptionsAreCheckedBeforeAnythingIsMade(t *testing.T) {
	for want, o := range map[string]Options{
		"1 to 100 nodes, not 101": {Nodes: 101},
		"1 to 100 nodes, not -1":  {Nodes: -1},
		`datapath "kernel"`:       {Datapath: "kernel"},
		`IP family "both"`:        {IPFamily: "both"},
		"not a YAML mapping":      {Config: []byte("[")},
	} {
		o.Dir = t.TempDir() + "/lab"
		if _, err := Up(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
		if exists(o.Dir) {
			t.Errorf("%s was made", o.Dir)
		}
	}
}
