package attachments

import (
	"testing"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
)

// A loss is reported once, even if it takes many rounds to write the record again.
func TestLostIsReportedOnce(t *testing.T) {
	var s Recorded
	port := []ovsdb.PodPort{{Attachment: api.Attachment{HostIf: "fl1"}}}
	for i, step := range []struct {
		now       []ovsdb.PodPort
		all, lost int
	}{{port, 1, 0}, {nil, 1, 1}, {nil, 1, 0}, {port, 1, 0}, {nil, 1, 1}} {
		if all, lost := s.Merge(step.now); len(all) != step.all || len(lost) != step.lost {
			t.Errorf("round %d: %d in all, %d reported as lost; want %d and %d", i, len(all), len(lost), step.all, step.lost)
		}
	}
}
