package main

import (
	"os"
	"path/filepath"
	"testing"
)

// Settings that cannot be applied are raised or removed; the rest of the configuration is kept, even a number that
// float64 cannot represent.
func TestWhatCannotBeSet(t *testing.T) {
	for _, c := range []struct {
		can           means
		before, after string
	}{
		{means{-5, true, true}, `{"linux":{"sysctl":{}},"process":{"args":["/a"],"oomScoreAdj":-997},"x":18446744073709551615}`,
			`{"linux":{"sysctl":{}},"process":{"args":["/a"],"oomScoreAdj":-5},"x":18446744073709551615}`},
		{means{-5, true, true}, `{"process":{"oomScoreAdj":-5}}`, `{"process":{"oomScoreAdj":-5}}`},
		{means{-5, true, true}, `{"process":{"oomScoreAdj":1000}}`, `{"process":{"oomScoreAdj":1000}}`},
		{means{-5, true, true}, `{"process":{}}`, `{"process":{}}`},
		{means{-5, true, true}, `{"linux":{"resources":{"hugepageLimits":[1]}}}`, `{"linux":{"resources":{"hugepageLimits":[1]}}}`},
		{means{-5, true, false}, `{"linux":{"resources":{"hugepageLimits":[1],"pids":{}}}}`, `{"linux":{"resources":{"pids":{}}}}`},
		{means{-5, true, false}, `{"linux":{}}`, `{"linux":{}}`},
		{means{-5, true, true}, `{"process":{"capabilities":{"bounding":["CAP_SYS_RESOURCE"]}}}`,
			`{"process":{"capabilities":{"bounding":["CAP_SYS_RESOURCE"]}}}`},
		{means{-5, false, true}, `{"process":{"capabilities":{"bounding":["CAP_CHOWN","CAP_SYS_RESOURCE"],"effective":[]}}}`,
			`{"process":{"capabilities":{"bounding":["CAP_CHOWN"],"effective":[]}}}`},
	} {
		file := filepath.Join(t.TempDir(), "config.json")
		if err := os.WriteFile(file, []byte(c.before), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := edit(file, c.can.container); err != nil {
			t.Error(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != c.after {
			t.Errorf("%+v: %s became %s, %v, want %s", c.can, c.before, got, err, c.after)
		}
	}
}
