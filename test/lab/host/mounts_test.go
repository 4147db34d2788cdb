package host

import (
	"slices"
	"testing"
)

func TestParseMountinfo(t *testing.T) {
	got, err := parseMountinfo(`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root rw
37 36 0:4 net:[4026532] /run/a\040b\134c rw - nsfs nsfs rw
`)
	want := []Mount{
		{Target: "/mnt2", Type: "ext3", Source: "/dev/root"},
		{Target: `/run/a b\c`, Type: "nsfs", Source: "nsfs"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	for _, bad := range []string{"36 35 98:0 / /mnt rw\n", "36 35 - tmpfs\n"} {
		if m, err := parseMountinfo(bad); err == nil {
			t.Errorf("%q gave %+v, want an error", bad, m)
		}
	}
}
