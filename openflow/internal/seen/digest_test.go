package seen

import "testing"

func TestDigest(t *testing.T) {
	var d Digest
	of := func(parts ...string) *Digest {
		e := d.NewEmpty()
		for _, p := range parts {
			e.Add([]byte(p[:1]), []byte(p[1:]))
		}
		return e
	}
	want := of("one", "two", "three")
	if !want.Equal(of("three", "one", "two")) {
		t.Error("the order of the parts counts")
	}
	for _, other := range []*Digest{of(), of("one", "two"), of("one", "two", "thref"), of("one", "two", "three", "four"),
		of("one", "one", "two", "three"), of("one", "two", "two")} {
		if want.Equal(other) {
			t.Errorf("%+v is that of other parts", other)
		}
	}
}
