package reach

import (
	"bytes"
	"net/netip"
	"testing"
	"time"
)

func samplePacket() Packet {
	return Packet{From: NameHash("a"), To: NameHash("b"), Seq: 7, Uptime: time.Minute, Interval: 2 * time.Second,
		MTU: 1450, Full: true, Leaving: true, Initiates: true,
		Heard: Heard{Age: 1500 * time.Millisecond, Lost: 3, Narrow: true, Lossy: true, Bad: 2}, Trial: 9,
		About: NameHash("c"), Other: Other{NameHash("d"), 700 * time.Millisecond}}
}

func TestPacket(t *testing.T) {
	for _, size := range []int{0, Size, 1400} {
		b := samplePacket().Append(nil, size)
		if got, err := Parse(b); err != nil || got != samplePacket() || len(b) != max(size, Size) {
			t.Errorf("size %d: %d bytes, %+v, %v", size, len(b), got, err)
		}
	}
	good := samplePacket().Append(nil, 0)
	for i, what := range map[int]string{0: "another protocol", 3: "another version", 5: "40 losses of 32", 61: "40 ports of 4"} {
		b := bytes.Clone(good)
		b[i] = 40
		if p, err := Parse(b); err == nil {
			t.Errorf("%s is taken for %+v", what, p)
		}
	}
	for i := range 20 { // neither a question nor an answer
		good[40+i] = 0
	}
	if p, err := Parse(good); err != nil || p.About != 0 || p.Other != (Other{}) {
		t.Errorf("no question and no answer are taken for %+v, %v", p, err)
	}
	if p, err := Parse(good[:Size-1]); err == nil {
		t.Errorf("what is too short is taken for %+v", p)
	}
}

// Whatever arrives, the parser fails only with an error, and does not parse different contents as the same packet.
func FuzzParse(f *testing.F) {
	f.Add(samplePacket().Append(nil, 0))
	f.Add([]byte("FLR\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			return
		}
		again, err := Parse(p.Append(nil, len(b)))
		if err != nil || again != p {
			t.Errorf("%+v became %+v, %v", p, again, err)
		}
		l := Link{Interval: time.Second}
		now := time.Unix(1e9, 0)
		l.Next(now)
		l.Receive(p, now)
		if s := l.State(now); s.From != Works && !s.Away {
			t.Errorf("%+v was heard, and the state is %+v", p, s)
		}
	})
}

func TestEnd(t *testing.T) {
	for podCIDR, want := range map[string]string{"10.0.1.0/24": "10.0.1.254/24",
		"10.0.1.16/28": "10.0.1.30/28", "10.0.1.0/29": "invalid Prefix",
		"fd00:1::/64": "fd00:1::ffff:ffff:ffff:fffe/64", "10.0.0.0/16": "10.0.255.254/16"} {
		if got := End(netip.MustParsePrefix(podCIDR)); got.String() != want {
			t.Errorf("%s: %s, want %s", podCIDR, got, want)
		}
	}
	if End(netip.Prefix{}).IsValid() {
		t.Error("no podCIDR has an end")
	}
}
