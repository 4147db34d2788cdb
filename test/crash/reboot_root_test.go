package crash

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/ipam/hostlocal"
	"github.com/fairlead-cni/fairlead/test/crash/nodestate"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

const otherBoot = "00000000-1111-2222-3333-444444444444"

// After a reboot nothing from the previous boot holds an address or a port, even where an interface of that name exists
// again.
func TestRootReboot(t *testing.T) {
	c := up(t)
	c.apply(t, podYAML("a", node), podYAML("b", node))
	c.settle(t)
	must(t, c.RunnerStop(labtest.Within(t, time.Minute)))
	must(t, c.AgentStop(labtest.Within(t, time.Minute), node))
	pods := c.pods(t)
	for _, p := range pods {
		c.exec(t, "ovs-vsctl", "set", "Port", p.HostIf(), "external_ids:fairlead-boot-id="+otherBoot)
		if p.Name != "default/a" { // its interface stays
			must(t, c.node.RemoveNetns(p.Netns))
		}
	}
	must(t, os.WriteFile(c.leaseFile("boot-id"), []byte(otherBoot+"\n"), 0o600))
	must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
	c.readyForCNI(t)
	a := pods[slices.IndexFunc(pods, func(p nodestate.Pod) bool { return p.Name == "default/a" })]
	eventually(t, 10*time.Second, func() []string {
		s := c.state(t)
		s.Netns = slices.DeleteFunc(s.Netns, func(path string) bool { return path == a.Netns })
		return c.ref.Differences(s, nil)
	})
	must(t, c.node.RemoveNetns(a.Netns))
	must(t, c.RunnerStart(labtest.Within(t, time.Minute)))
	eventually(t, 20*time.Second, func() []string { // the runner recreates the pods
		for _, p := range pods {
			rec, err := c.Records().Load(p.Name)
			if err != nil || rec == nil || rec.ContainerID == p.ContainerID || len(rec.IPs) == 0 {
				return []string{p.Name}
			}
		}
		return nil
	})
	c.settle(t)
	c.check(t)
}

func (c cluster) leaseFile(name string) string {
	return c.node.Private(filepath.Join(hostlocal.DefaultDir, name))
}

// Whatever happens to the lease files, a running pod keeps its addresses, and no other pod gets them.
func TestRootLeasesLost(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	c := up(t)
	near := c.pods(t)[0]
	for what, damage := range map[string]func(){
		"another boot": func() { must(t, os.WriteFile(c.leaseFile("boot-id"), []byte(otherBoot), 0o600)) },
		"all gone":     func() { must(t, os.RemoveAll(c.leaseFile(""))) },
		"one gone":     func() { must(t, os.Remove(c.leaseFile(near.IPs[0].String()))) },
		"garbage": func() {
			for name, content := range map[string]string{near.IPs[0].String(): "\x00\xff\n\n", near.IPs[1].String(): "",
				"10.77.1.9": "unknown", "10.77.1.10": "", "10.77.1.300": "x", "fd77:0:0:1::9": strings.Repeat("x", 5000),
				"boot-id.tmp": "x", "last_reserved_ip.32": "not an address"} {
				must(t, os.WriteFile(c.leaseFile(name), []byte(content), 0o600))
			}
			must(t, os.Mkdir(c.leaseFile("10.77.1.12"), 0o755))
		},
	} {
		for _, running := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, agent runs %v", what, running), func(t *testing.T) {
				c.readyForCNI(t)
				if !running {
					must(t, c.AgentStop(labtest.Within(t, time.Minute), node))
				}
				damage()
				if !running {
					must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
				}
				stop := c.watchAddresses(t)
				defer stop()
				pods := c.fill(24) // more would leave no address free
				c.apply(t, pods...)
				c.settle(t)
				if running {
					c.kill(t) // otherwise it takes some seconds more until the lease is restored
				}
				c.check(t)
				c.remove(t, pods...)
				c.settle(t)
				c.check(t)
			})
		}
	}
}

func (c cluster) fill(n int) (pods []string) {
	for i := range n {
		pods = append(pods, podYAML(fmt.Sprintf("f%d", i), node))
	}
	return pods
}

// A record that was edited manually is restored by an agent that has seen it before. An agent that starts cannot
// identify the port's owner: it removes nothing, and reports it.
func TestRootRecordEditedByHand(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	c := up(t)
	near := c.pods(t)[0]
	edit := []string{"ovs-vsctl", "set", "Port", near.HostIf(), "external_ids:fairlead-mac=nonsense"}
	c.exec(t, edit...)
	eventually(t, 5*time.Second, func() []string {
		if mac := c.exec(t, "ovs-vsctl", "get", "Port", near.HostIf(), "external_ids:fairlead-mac"); strings.Contains(mac, "nonsense") {
			return []string{mac}
		}
		return nil
	})
	c.check(t)

	must(t, c.AgentStop(labtest.Within(t, time.Minute), node))
	c.exec(t, edit...)
	must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
	c.readyForCNI(t)
	eventually(t, 5*time.Second, func() []string {
		if log := c.agentLog(t); !strings.Contains(log, "fairlead-mac") {
			return []string{"the log does not report the record"}
		}
		return nil
	})
	out, err := c.CNI(labtest.Within(t, time.Minute), node, lab.CHECK, near.Name)
	if err == nil || !strings.Contains(out, "is unreadable") || !strings.Contains(out, "fairlead-mac") {
		t.Errorf("CHECK: %v %s", err, out)
	}
	s := c.state(t)
	if _, ok := s.Ports[near.HostIf()]; !ok || !slices.Equal(s.Veths, []string{near.HostIf()}) || len(s.Leases) != 2 {
		t.Errorf("left are the ports %v, veths %v, leases %v", s.Ports, s.Veths, s.Leases)
	}
	// The pod can be deleted nevertheless.
	c.remove(t, podYAML("near", node))
	c.settle(t)
	c.check(t)
}
