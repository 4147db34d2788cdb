package compile_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
	"github.com/fairlead-cni/fairlead/test/ovstest"
	"github.com/fairlead-cni/fairlead/test/policytest"
)

// With the flows, a real Open vSwitch does what the specifications require, in the shortest pipeline that has their
// tables: 20 clusters, or 300 with FAIRLEAD_TEST_LONG=1.
func TestOracleOnOpenVSwitch(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	o.AddBridge("br0", ovstest.Port{Name: "p1", OFPort: 1}, ovstest.Port{Name: "p2", OFPort: 2})
	file := filepath.Join(t.TempDir(), "flows")
	n, judged := 20, [2]int{}
	if os.Getenv("FAIRLEAD_TEST_LONG") != "" {
		n = 300
	}
	policytest.Cases(t, n, func(t *testing.T, seed uint64) error {
		r := policytest.New(seed, false)
		w := r.World()
		c := compile.New()
		w.Load(r, c)
		s := newSwitchText(c.Changes().Put)
		if err := os.WriteFile(file, []byte(strings.Join(s.lines, "\n")), 0o600); err != nil {
			return err
		}
		o.Ofctl("del-flows", "br0")
		o.Ofctl("add-flows", "br0", file)
		for range 12 {
			packet := r.Connection(w)
			for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
				about, ok := w.About(packet, d)
				if !ok {
					continue
				}
				want := policy.Deny
				if w.Allowed(packet, d == policy.Egress) {
					want = policy.Accept
				}
				judged[2-want]++
				report := o.Trace("br0", s.packet(about, packet))
				if strings.HasSuffix(strings.TrimSpace(report), "Datapath actions: 1") != (want == policy.Accept) {
					return fmt.Errorf("%s of %+v: want %v, and Open vSwitch does\n%s\nwith\n%s", d, packet, want, report,
						strings.Join(s.lines, "\n"))
				}
			}
		}
		return nil
	})
	t.Logf("denied %d, accepted %d", judged[0], judged[1])
}

// switchText are flows in ovs-ofctl's syntax. reg1 is the pod, reg2 the class of the peer, reg3 the pod's group.
type switchText struct {
	lines []string
	pods  []policy.PodKey
}

// Tables of ingress; those of egress are 10 higher. Each continues to the next, and the last one accepts.
const (
	peersTable = 10
	groupTable = 11
	tierTable  = 11 // plus the tier
	lastTable  = 15
)

func newSwitchText(flows []compile.Flow) *switchText {
	s := &switchText{}
	for _, d := range []int{0, 10} {
		for table := peersTable; table < lastTable; table++ {
			s.add(table+d, 0, "", fmt.Sprintf("goto_table:%d", table+d+1))
		}
		s.add(lastTable+d, 0, "", "output:1")
	}
	for _, f := range flows {
		s.flow(f, 10*int(f.Direction))
	}
	for i := range 16 { // more pods than a cluster has
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			s.add(0, 1, mac(d, i), fmt.Sprintf("load:%d->NXM_NX_REG1[],goto_table:%d", i+1, peersTable+10*int(d)))
		}
	}
	return s
}

func (s *switchText) add(table, priority int, match, actions string) {
	s.lines = append(s.lines, fmt.Sprintf("table=%d,priority=%d,%s,actions=%s", table, priority, match, actions))
}

// mac encodes which pod is judged, and in which direction.
func mac(d policy.Direction, pod int) string {
	return fmt.Sprintf("dl_src=02:00:00:00:%02x:%02x", int(d), pod+1)
}

func (s *switchText) pod(key policy.PodKey) int {
	i := slices.Index(s.pods, key)
	if i < 0 {
		i = len(s.pods)
		s.pods = append(s.pods, key)
	}
	return i
}

func (s *switchText) flow(f compile.Flow, base int) {
	table, priority := tierTable+int(f.Tier)+base, 30000-2*int(f.Rank)
	pod := func() string { return fmt.Sprintf("reg1=%d", s.pod(f.Pod)+1) }
	verdict := map[policy.Verdict]string{policy.Accept: "output:1", policy.Deny: "drop",
		policy.Pass: fmt.Sprintf("goto_table:%d", table+1)}[f.Verdict]
	var clauses []string
	for _, c := range f.Clauses {
		clauses = append(clauses, fmt.Sprintf("conjunction(%d,%d/%d)", c.Rule, c.Number, c.Of))
	}
	conjunctions := strings.Join(clauses, ",")
	switch f.Kind {
	case compile.Address:
		field := map[bool]string{true: "ip,nw_", false: "ipv6,ipv6_"}[f.Address.Addr().Is4()] + [...]string{"src", "dst"}[f.Direction]
		s.add(peersTable+base, 1+f.Address.Bits(), field+"="+f.Address.String(),
			fmt.Sprintf("load:%d->NXM_NX_REG2[],goto_table:%d", f.Set, groupTable+base))
	case compile.Member:
		s.add(groupTable+base, 1, pod(), fmt.Sprintf("load:%d->NXM_NX_REG3[],goto_table:%d", f.Set, groupTable+base+1))
	case compile.Pod:
		s.add(table, priority, pod(), conjunctions)
	case compile.Group:
		s.add(table, priority, fmt.Sprintf("reg3=%d", f.Group), conjunctions)
	case compile.Class:
		s.add(table, priority, fmt.Sprintf("reg2=%d", f.Match.Class), conjunctions)
	case compile.Port:
		for _, family := range []string{"", "6"} {
			protocol := strings.ToLower(f.Protocol.String())
			match := protocol + family
			if f.Mask != 0 {
				match += fmt.Sprintf(",%s_dst=%d/%#x", protocol, f.Port, f.Mask)
			}
			s.add(table, priority, match, conjunctions)
		}
	case compile.Rule:
		s.add(table, priority, fmt.Sprintf("conj_id=%d", f.Match.Rule), verdict)
	case compile.Whole:
		match := fmt.Sprintf("reg3=%d", f.Group)
		if f.Group == 0 {
			match = pod()
		}
		s.add(table, priority+1, match, verdict)
	case compile.Isolated:
		s.add(table, 1, pod(), verdict)
	case compile.Closed:
		s.add(table, 65535, pod(), verdict)
	}
}

// packet is a connection's first packet, in the syntax of ofproto/trace.
func (s *switchText) packet(about compile.Connection, c policytest.Connection) string {
	addrs := func(src, dst netip.Addr) string {
		if src.Is4() {
			return fmt.Sprintf("nw_src=%s,nw_dst=%s", src, dst)
		}
		return fmt.Sprintf("ipv6_src=%s,ipv6_dst=%s", src, dst)
	}
	protocol := strings.ToLower(string(c.Protocol))
	family := ""
	if !c.From.Is4() {
		family = "6"
	}
	text := fmt.Sprintf("in_port=2,%s,%s%s,%s", mac(about.Direction, s.pod(about.Pod)), protocol, family,
		addrs(c.From, c.To))
	if c.Port != 0 {
		text += fmt.Sprintf(",%s_src=1000,%s_dst=%d", protocol, protocol, c.Port)
	}
	return text
}

// The cost of the flows for 10,000 pods and 1,000 policies in ovs-vswitchd, both directions, in one bundle of
// ovs-ofctl.
func BenchmarkInstall(b *testing.B) {
	for _, s := range sizes() {
		b.Run(s.name, func(b *testing.B) {
			o := ovstest.Start(b, ovstest.Options{})
			o.AddBridge("br0")
			text := newSwitchText(s.load().Changes().Put)
			file := filepath.Join(b.TempDir(), "flows")
			if err := os.WriteFile(file, []byte(strings.Join(text.lines, "\n")), 0o600); err != nil {
				b.Fatal(err)
			}
			before := resident(b, o.Vswitchd.PID())
			for b.Loop() {
				o.Ofctl("replace-flows", "br0", file)
			}
			b.ReportMetric(float64(len(text.lines)), "flows")
			b.ReportMetric(resident(b, o.Vswitchd.PID())-before, "MiB")
		})
	}
}

// resident is the resident memory of a process in MiB.
func resident(b *testing.B, pid int) float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		b.Fatal(err)
	}
	var size, pages float64
	if _, err := fmt.Sscan(string(status), &size, &pages); err != nil {
		b.Fatal(err)
	}
	return pages * float64(os.Getpagesize()) / (1 << 20)
}
