package allocation

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
)

// However an allocation's file was damaged, its address is not allocated to another owner. A newer version's file still
// belongs to its owner; for any other, the holder is reported as unknown, and the file is not overwritten.
func TestDirectoryDamagedFiles(t *testing.T) {
	const addr = "10.2.0.9"
	for name, damage := range map[string]func([]byte) []byte{
		"newer unknown fields": func(b []byte) []byte { return newerFields(t, b) },
		"truncated":            func(b []byte) []byte { return b[:len(b)/2] },
		"without its end":      func(b []byte) []byte { return b[:len(b)-2] },
		"empty":                func([]byte) []byte { return nil },
		"zeros":                func(b []byte) []byte { return make([]byte, len(b)) },
		"no object":            func([]byte) []byte { return []byte(`["10.2.0.9"]`) },
		"another's":            func(b []byte) []byte { return []byte(strings.ReplaceAll(string(b), addr, "10.2.0.8")) },
		"other programs' text": func([]byte) []byte { return []byte("container-1\neth0\n") },
		"a field of another type": func(b []byte) []byte {
			return []byte(strings.Replace(string(b), `"owner":{`, `"owner":[],"was":{`, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDirectory(t, t.TempDir())
			made, err := d.Create(t.Context(), allocationOf(addr, "p", "n1", "c1"))
			if err != nil {
				t.Fatal(err)
			}
			whole, err := os.ReadFile(d.file(made.Name))
			if err != nil {
				t.Fatal(err)
			}
			damaged := damage(whole)
			if err := os.WriteFile(d.file(made.Name), damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			holder := Unreadable
			if name == "newer unknown fields" {
				holder = "c1"
			}
			list, err := d.List(t.Context(), Filter{Pool: "p"})
			if err != nil || len(list) != 1 || list[0].Spec.Address != addr || list[0].Spec.Owner.ContainerID != holder {
				t.Errorf("listed are %+v, %v, want %s of container %s", list, err, addr, holder)
			}
			var taken *TakenError
			_, err = d.Create(t.Context(), allocationOf(addr, "p", "n2", "c2"))
			if !errors.As(err, &taken) || taken.Holder.Spec.Owner.ContainerID != holder {
				t.Errorf("another's Create: %v, want that container %s has it", err, holder)
			}
			if err := d.Delete(t.Context(), made); (err == nil) != (holder == "c1") {
				t.Errorf("Delete by its owner: %v", err)
			}
			if now, err := os.ReadFile(d.file(made.Name)); holder == Unreadable && string(now) != string(damaged) {
				t.Errorf("the file was changed to %q, %v", now, err)
			}
		})
	}
}

// newerFields adds fields that this version does not know, at each level.
func newerFields(t *testing.T, text []byte) []byte {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	spec := all["spec"].(map[string]any)
	all["newer"], spec["newer"], spec["owner"].(map[string]any)["newer"] = 1, []int{1}, map[string]any{"a": "b"}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
