package suite

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// capturedOnNode checks that fairleadctl captures a pod's packets to another node's pod in both directions: at the pod,
// in the kernel's tunnel device where there is one, and inside tunnel packets on the NIC; that they are written while
// the capture runs; and that another pod's packets on the same path to the same end are not among them.
func capturedOnNode(t *testing.T, c cluster) {
	a, other, far := c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c")
	to := far.ips[0].String()
	cmd := c.NodeCommand(labtest.Within(t, time.Minute), "node1", "fairleadctl", "capture", "a", "--node-local", "--to", to,
		"-w", "-")
	var said bytes.Buffer
	cmd.Stderr = &said
	in, err := cmd.StdoutPipe()
	must(t, 0, err)
	must(t, 0, cmd.Start())
	r, err := pcapgo.NewNgReader(in, pcapgo.NgReaderOptions{WantMixedLinkType: true}) // it captures from here on
	must(t, 0, err)
	other.exec(t, "ping -c 3 -i 0.2 -W 5 "+to)
	a.exec(t, "ping -c 3 -i 0.2 -W 5 "+to)
	want := []string{"default/a@node1", "eth0@node1"}
	if ovstest.UnderTest(t) == ovstest.System {
		want = append(want, "tunnel")
	}
	seen := map[string]pcapgo.NgEpbFlag{} // directions, by interface
	for asked := false; ; {
		data, info, options, err := r.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, 0, err)
		of, err := r.Interface(info.InterfaceIndex)
		must(t, 0, err)
		name := of.Name
		if bytes.Contains(data, other.ips[0].AsSlice()) {
			t.Errorf("a packet of another pod in %s: %x", name, data)
		}
		if strings.Contains(name, "_sys") { // genev_sys_6081, vxlan_sys_4789, gre_sys
			name = "tunnel"
		}
		seen[name] |= options.Flags.Direction
		if !asked && len(oneWay(seen, want)) == 0 {
			asked = true
			must(t, 0, cmd.Process.Signal(os.Interrupt))
		}
	}
	if err := cmd.Wait(); err != nil || len(oneWay(seen, want)) > 0 || !strings.Contains(said.String(), "interrupt") {
		t.Errorf("%v: not seen in both directions: %q\n%s", err, oneWay(seen, want), said.String())
	}
}

// oneWay lists the interfaces on which packets were not seen in both directions.
func oneWay(seen map[string]pcapgo.NgEpbFlag, want []string) (out []string) {
	for _, name := range want {
		if seen[name] != pcapgo.NgEpbFlagDirectionInbound|pcapgo.NgEpbFlagDirectionOutbound {
			out = append(out, name)
		}
	}
	return out
}
