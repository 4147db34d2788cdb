package feed

import (
	"strconv"
	"sync"
	"testing"
)

// No receiver gets the removal of an object without its replacement.
func TestReplaceIsOneChange(t *testing.T) {
	before, now := Key{NetworkPolicy, "ns/a"}, map[Key]any{{NetworkPolicy, "ns/b"}: "b"}
	for i := range 5000 {
		now[Key{Pod, strconv.Itoa(i)}] = i
	}
	p := New()
	p.Replace(nil, map[Key]any{before: "a"})
	p.Take()
	var replacing sync.WaitGroup
	replacing.Go(func() { p.Replace(map[Key]any{before: "a"}, now) })
	for found := false; !found; {
		objects, _, _ := p.Take()
		if _, found = objects[before]; found && len(objects) != len(now)+1 {
			t.Errorf("with it %d of %d changes are taken", len(objects), len(now)+1)
		}
	}
	replacing.Wait()
}
