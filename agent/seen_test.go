package agent

import (
	"slices"
	"testing"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
)

// What somebody removes from OVSDB under a running pod stays wanted; what a DEL
// takes off does not come back, though the DEL's round still sees it on record.
func TestAttachmentsLostFromOVSDB(t *testing.T) {
	l := &loop{log: logr.Discard()}
	attachment := func(id string) api.Attachment {
		return api.Attachment{ContainerID: id, IfName: "eth0", HostIf: link.HostName(id, "eth0")}
	}
	a, b, c := attachment("a"), attachment("b"), attachment("c")
	port := func(a api.Attachment) ovsdb.PodPort { return ovsdb.PodPort{Attachment: a} }
	step := func(what string, now []ovsdb.PodPort, waiting []request, want ...string) {
		t.Helper()
		var got []string
		for _, a := range l.attachments(now, waiting) {
			got = append(got, a.ContainerID)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: wanted are %v, want %v", what, got, want)
		}
	}
	step("two on record", []ovsdb.PodPort{port(a), port(b)}, nil, "a", "b")
	step("del-port b", []ovsdb.PodPort{port(a)}, nil, "a", "b")
	step("del-br", nil, nil, "a", "b")
	step("written again, and an ADD", []ovsdb.PodPort{port(a), port(b)}, []request{{add: &c}}, "a", "b", "c")
	step("the ADD failed before it was on record", []ovsdb.PodPort{port(a), port(b)}, nil, "a", "b")
	step("DEL a", []ovsdb.PodPort{port(a), port(b)}, []request{{del: keyOf(a)}}, "b")
	step("a is off", []ovsdb.PodPort{port(b)}, nil, "b")
	step("DEL b, whose port somebody removed", nil, []request{{del: keyOf(b)}})
	step("none is left", nil, nil)
}

// What is lost is told once, though it may take many rounds to write it again.
func TestLostIsToldOnce(t *testing.T) {
	var s seen
	port := []ovsdb.PodPort{{Attachment: api.Attachment{HostIf: "fl1"}}}
	for i, step := range []struct {
		now       []ovsdb.PodPort
		all, lost int
	}{{port, 1, 0}, {nil, 1, 1}, {nil, 1, 0}, {port, 1, 0}, {nil, 1, 1}} {
		if all, lost := s.merge(step.now); len(all) != step.all || len(lost) != step.lost {
			t.Errorf("round %d: %d in all, %d told as lost; want %d and %d", i, len(all), len(lost), step.all, step.lost)
		}
	}
}
