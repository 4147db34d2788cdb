package objects

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// What a controller writes between two reads of an object does not count as a change by Apply.
func TestEqual(t *testing.T) {
	read := func(text string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		return o
	}
	for after, want := range map[string]bool{
		`{metadata: {name: a, annotations: {revision: "1"}}, spec: {replicas: 0}, status: {ready: 1}}`: true,
		`{metadata: {name: a, generation: 2, resourceVersion: "7"}, spec: {replicas: 0}}`:              true,
		`{metadata: {name: a}, spec: {replicas: 1}}`:                                                   false,
	} {
		applied, before := read(`{metadata: {name: a}, spec: {replicas: 0}}`), read(`{metadata: {name: a}, spec: {replicas: 0}}`)
		if got := equal(applied, before, read(after)); got != want {
			t.Errorf("%s: %v, want %v", after, got, want)
		}
	}
}
