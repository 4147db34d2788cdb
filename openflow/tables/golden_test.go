package tables

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/flowtest"

	"golang.org/x/tools/txtar"
)

// TestGolden compares the flows of a View with those in testdata. After an intended change, "go test -update" rewrites
// them; read the diff.
func TestGolden(t *testing.T) {
	for _, file := range goldenFiles(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			a, v := readGolden(t, file)
			got := flowtest.Text(Pipeline(v))
			if *update {
				a.Files = []txtar.File{a.Files[0], {Name: "flows", Data: []byte(got)}}
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if len(a.Files) < 2 {
				t.Fatalf("%s has no flows; run go test -update", file)
			}
			if diff := flowtest.Diff(string(a.Files[1].Data), got); diff != "" {
				t.Errorf("flows differ from %s (-want +got):\n%s", file, diff)
			}
		})
	}
}

var update = flag.Bool("update", false, "write the flows into testdata")

func goldenFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 6 {
		t.Fatalf("golden files: %v, %v", files, err)
	}
	return files
}

// readGolden returns a golden file and the View in it: lines of "KIND key=value ...".
func readGolden(t testing.TB, file string) (*txtar.Archive, View) {
	t.Helper()
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var v View
	for line := range strings.Lines(string(a.Files[0].Data)) {
		words := strings.Fields(line)
		arg := map[string]string{}
		for _, w := range words[1:] {
			k, val, _ := strings.Cut(w, "=")
			arg[k] = val
		}
		port, err := strconv.ParseUint("0"+arg["port"], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		switch words[0] {
		case "gateway":
			v.Gateway = Gateway{uint32(port), flowtest.MAC(t, arg["mac"]), flowtest.Addrs(arg["addrs"]), flowtest.Prefixes(arg["podcidrs"])}
		case "tunnel":
			v.TunnelPort = uint32(port)
		case "pod":
			v.Pods = append(v.Pods, pod(t, uint32(port), arg))
		case "uplink":
			v.Uplink = uint32(port)
		case "node":
			v.NodeAddrs, v.ViaHost = flowtest.Addrs(arg["addrs"]), flowtest.Prefixes(arg["router"])
			v.RoutedMTU, _ = strconv.Atoi(arg["mtu"])
		case "peer":
			p := Peer{Name: arg["name"], PodCIDRs: flowtest.Prefixes(arg["podcidrs"]), Direct: flowtest.Prefixes(arg["direct"])}
			if arg["tunnel"] != "" {
				p.Tunnel = netip.MustParseAddr(arg["tunnel"])
			}
			v.Peers = append(v.Peers, p)
		default:
			t.Fatalf("%s: %q", file, line)
		}
	}
	return a, v
}

// pod reads a pod: with a VLAN it is a bridged one.
func pod(t testing.TB, port uint32, arg map[string]string) Pod {
	t.Helper()
	p := Pod{Port: port, MAC: flowtest.MAC(t, arg["mac"]), Addrs: flowtest.Addrs(arg["addrs"])}
	if vlan, bridged := arg["vlan"]; bridged {
		n, err := strconv.ParseUint(vlan, 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		p.Bridged, p.VLAN = true, uint16(n)
	}
	return p
}
