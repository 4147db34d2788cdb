package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// bridgeList is a network of the reference plugins, as a CNI provider would install it.
const bridgeList = `{"cniVersion": "1.0.0", "name": "reference", "plugins": [
	{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
	 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"%s}]], "routes": [{"dst": "0.0.0.0/0"}]}},
	{"type": "portmap", "capabilities": {"portMappings": true}, "backend": "iptables"}]}`

// spyPlugin logs its calls, and behaves as files on the node specify.
const spyPlugin = `#!/bin/sh
{ echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME $CNI_ARGS"; cat; echo; } >>/run/spy.log
[ -e "/run/slow-$CNI_COMMAND" ] && sleep 1000
[ -e "/run/fail-$CNI_COMMAND" ] && { echo '{"cniVersion": "1.1.0", "code": 11, "msg": "not now"}'; exit 1; }
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}' ;;
ADD) echo '{"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "'$CNI_NETNS'"}],
	"ips": [{"address": "10.88.1.2/24", "interface": 0}]}' ;;
esac
`

const spyList = `{"cniVersion": "1.1.0", "name": "spy", "plugins": [
	{"type": "spy", "capabilities": {"portMappings": true, "bandwidth": true}}]}`

func needPlugins(t *testing.T) {
	t.Helper()
	needRoot(t)
	for _, p := range []string{"bridge", "host-local", "portmap"} {
		if !exists("/usr/lib/cni/" + p) {
			t.Skipf("SKIPPED, NOT TESTED: no reference CNI plugin %s (Debian: containernetworking-plugins)", p)
		}
	}
}

// network installs a CNI configuration on a node; an empty one removes it.
func network(t *testing.T, l *Lab, node, conflist string) {
	t.Helper()
	h, err := l.Host(node)
	if err != nil {
		t.Fatal(err)
	}
	file := h.Private("/etc/cni/net.d/20-test.conflist")
	if conflist == "" {
		err = os.Remove(file)
	} else {
		err = os.WriteFile(file, []byte(conflist), 0o644)
	}
	if err == nil {
		err = os.WriteFile(h.Private("/opt/cni/bin/spy"), []byte(spyPlugin), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func podYAML(name, node string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\n" +
		"spec: {nodeName: " + node + ", containers: []}\n---\n"
}

func apply(t *testing.T, l *Lab, manifests ...string) {
	t.Helper()
	if _, err := l.Apply("test", []byte(strings.Join(manifests, "---\n"))); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, l *Lab, manifests ...string) {
	t.Helper()
	if _, err := l.Delete("test", []byte(strings.Join(manifests, "---\n"))); err != nil {
		t.Fatal(err)
	}
}

func settled(t *testing.T, l *Lab) {
	t.Helper()
	if err := l.WaitPods(labtest.Within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
}

func podState(t *testing.T, l *Lab, pod string) PodState {
	t.Helper()
	pods, err := l.PodStates()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		if p.Pod == pod {
			return p
		}
	}
	return PodState{}
}

func spyLog(t *testing.T, l *Lab, node string) string {
	t.Helper()
	h, err := l.Host(node)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(h.Private("/run/spy.log"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(data)
}

// calls are the CNI commands of the spy's log, without VERSION, with short container IDs.
func calls(log string) []string {
	var out []string
	for line := range strings.Lines(log) {
		f := strings.Fields(line)
		if len(f) > 1 && slices.Contains([]string{"ADD", "DEL", "CHECK", "GC", "STATUS"}, f[0]) {
			out = append(out, f[0]+" "+f[1][:6])
		}
	}
	return out
}

func touch(t *testing.T, h host.Host, path string) {
	t.Helper()
	if err := os.WriteFile(h.Private(path), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestRootPodsByReferencePlugins(t *testing.T) {
	needPlugins(t)
	l := up(t, Options{Nodes: 2, IPFamily: underlay.IPv4})
	a, b := podYAML("a", "node1"), podYAML("b", "node1")
	apply(t, l, a, b, podYAML("elsewhere", "node9"))
	eventually(t, "the pod says why it waits", func() bool {
		return strings.Contains(podState(t, l, "default/a").LastError, "no CNI configuration")
	})
	eventually(t, "the pod of a foreign node says so", func() bool {
		p := podState(t, l, "default/elsewhere")
		return p.State == Pending && strings.Contains(p.LastError, "not on a node")
	})
	for _, node := range l.Nodes() {
		network(t, l, node, fmt.Sprintf(bridgeList, ""))
	}
	settled(t, l)
	ipB := podState(t, l, "default/b").IPs
	if len(ipB) != 1 || !strings.HasPrefix(ipB[0], "10.88.0.") {
		t.Fatalf("pod b has the addresses %v", ipB)
	}
	ping(t, podExec(t, l, "default/a", "ping", "-c3", "-i0.02", "-w30", ipB[0]))
	out := podExec(t, l, "default/a", "ip", "-br", "addr", "show", "eth0")
	if !strings.Contains(out, podState(t, l, "default/a").IPs[0]) {
		t.Errorf("eth0 of pod a: %s", out)
	}

	// A process of the pod ends with it, and so do namespace and lease.
	background := l.PodCommand(t.Context(), "default/b", "sh", "-c", "echo; exec sleep 1000")
	stdout, err := background.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := background.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 1)); err != nil { // wait until it is in the pod
		t.Fatal(err)
	}
	remove(t, l, b)
	settled(t, l)
	if err := background.Wait(); err == nil {
		t.Error("the pod's process was not killed")
	}
	out = nodeExec(t, l, "node1", "sh", "-c", "ls /run/netns; ls /var/lib/cni/networks/reference")
	if strings.Count(out, "cni-") != 1 || strings.Contains(out, ipB[0]) {
		t.Errorf("left on the node, where only pod a should be:\n%s", out)
	}
	_, err = l.PodExec(t.Context(), "default/b", "true")
	if err == nil || !strings.Contains(err.Error(), "there is no pod default/b") {
		t.Errorf("a command in a pod that is gone: %v", err)
	}
}

// Three pods, two addresses: the third pod waits, with the plugin's error, and gets the first one that is released.
func TestRootPodIsTriedAgain(t *testing.T) {
	needPlugins(t)
	l := up(t, Options{Nodes: 1, IPFamily: underlay.IPv4})
	network(t, l, "node1", fmt.Sprintf(bridgeList, `, "rangeStart": "10.88.0.10", "rangeEnd": "10.88.0.11"`))
	apply(t, l, podYAML("a", "node1"), podYAML("b", "node1"))
	settled(t, l)
	apply(t, l, podYAML("c", "node1"))
	eventually(t, "several tries of pod c", func() bool { return podState(t, l, "default/c").Attempt >= 3 })
	p := podState(t, l, "default/c")
	if p.State == sandbox.Running || !strings.Contains(p.LastError, "no IP addresses available") {
		t.Errorf("pod c: %+v", p)
	}
	remove(t, l, podYAML("a", "node1"))
	settled(t, l)
	if out := nodeExec(t, l, "node1", "ls", "/run/netns"); strings.Count(out, "cni-") != 2 {
		t.Errorf("namespaces of failed sandboxes are left:\n%s", out)
	}
}

func TestRootCallsAreARuntimes(t *testing.T) {
	l := up(t, Options{Nodes: 1})
	h, _ := l.Host("node1")
	network(t, l, "node1", spyList)
	pod := `apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, uid: 1-2-3, annotations: {kubernetes.io/egress-bandwidth: 10M}}
spec:
  nodeName: node1
  containers: [{name: c, ports: [{containerPort: 80, hostPort: 8080, protocol: UDP}, {containerPort: 81}]}]
`
	touch(t, h, "/run/fail-ADD")
	apply(t, l, pod)
	eventually(t, "a second try", func() bool { return podState(t, l, "shop/web").Attempt >= 2 })
	if err := os.Remove(h.Private("/run/fail-ADD")); err != nil {
		t.Fatal(err)
	}
	settled(t, l)
	touch(t, h, "/run/fail-DEL")
	remove(t, l, pod)
	eventually(t, "a failed DEL", func() bool { return strings.Contains(podState(t, l, "shop/web").LastError, "not now") })
	if p := podState(t, l, "shop/web"); p.State != sandbox.Terminating {
		t.Errorf("a pod whose DEL fails: %+v", p)
	}
	if err := os.Remove(h.Private("/run/fail-DEL")); err != nil {
		t.Fatal(err)
	}
	settled(t, l)

	log := spyLog(t, l, "node1")
	got := calls(log)
	// Each failed ADD is followed by its DEL, the last ADD by DELs until one succeeds.
	var last string
	for i, c := range got {
		verb, id, _ := strings.Cut(c, " ")
		if verb == "DEL" && id != last || verb == "ADD" && i > 0 && id == last {
			t.Errorf("call %d is %s after container %s: %v", i, c, last, got)
		}
		last = id
	}
	if got[0][:3] != "ADD" || got[1][:3] != "DEL" {
		t.Errorf("the calls begin with %v, want a failed ADD and its DEL", got[:2])
	}
	for _, want := range []string{"K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;", "K8S_POD_UID=1-2-3", "IgnoreUnknown=1",
		`"portMappings":[{"containerPort":80,"hostPort":8080,"protocol":"udp"}]`,
		`"bandwidth":{"egressBurst":4294967295,"egressRate":10000000}`,
		"/run/netns/cni-", " eth0 "} {
		if !strings.Contains(log, want) {
			t.Errorf("no call had %s:\n%s", want, log)
		}
	}
	if strings.Count(log, `"hostPort":8080`) != strings.Count(log, "ADD ")+strings.Count(log, "DEL ") {
		t.Error("not every call had the port mapping: DEL must have what ADD had")
	}
	if out := nodeExec(t, l, "node1", "ls", "/run/netns"); strings.Contains(out, "cni-") {
		t.Errorf("namespaces are left:\n%s", out)
	}
}

// After a SIGKILL of the runner pods stay; its successor applies the changes made meanwhile and undoes unfinished work.
func TestRootRunnerFindsItsPodsAgain(t *testing.T) {
	l := up(t, Options{Nodes: 1})
	h, _ := l.Host("node1")
	network(t, l, "node1", spyList)
	apply(t, l, podYAML("stays", "node1"), podYAML("goes", "node1"), podYAML("again", "node1"))
	settled(t, l)
	stays, again := podState(t, l, "default/stays"), podState(t, l, "default/again")
	touch(t, h, "/run/slow-ADD")
	apply(t, l, podYAML("half", "node1"))
	eventually(t, "the ADD of pod half", func() bool { return strings.Count(spyLog(t, l, "node1"), "ADD ") == 4 })
	half := podState(t, l, "default/half")
	if half.State != sandbox.Creating {
		t.Errorf("a pod in the middle of its ADD: %+v", half)
	}
	if err := l.RunnerKill(labtest.Within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if l.RunnerPID() != 0 {
		t.Error("the runner is still there")
	}
	podExec(t, l, "default/stays", "true") // the pods do not depend on the runner
	remove(t, l, podYAML("goes", "node1"), podYAML("again", "node1"))
	apply(t, l, podYAML("again", "node1"), podYAML("new", "node1"))
	if p := podState(t, l, "default/new"); !strings.Contains(p.LastError, "lab runner start") {
		t.Errorf("a new pod without a runner: %+v", p)
	}
	if err := os.Remove(h.Private("/run/slow-ADD")); err != nil {
		t.Fatal(err)
	}

	if err := l.RunnerStart(labtest.Within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := l.RunnerStart(labtest.Within(t, 10*time.Second)); err == nil {
		t.Error("a second runner could be started")
	}
	settled(t, l)
	var running []string
	pods, err := l.PodStates()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		running = append(running, p.Pod+" "+string(p.State))
	}
	want := []string{"default/again Running", "default/half Running", "default/new Running", "default/stays Running"}
	if !slices.Equal(running, want) {
		t.Errorf("pods %v, want %v", running, want)
	}
	if got := podState(t, l, "default/stays").ContainerID; got != stays.ContainerID {
		t.Errorf("pod stays has a new sandbox")
	}
	log := spyLog(t, l, "node1")
	for name, id := range map[string]string{"again": again.ContainerID, "half": half.ContainerID} {
		if podState(t, l, "default/"+name).ContainerID == id || !strings.Contains(log, "DEL "+id) {
			t.Errorf("the old sandbox of pod %s was not taken away", name)
		}
	}
	if out := nodeExec(t, l, "node1", "ls", "/run/netns"); strings.Count(out, "cni-") != 4 {
		t.Errorf("namespaces on the node, want 4:\n%s", out)
	}
}

func TestRootCNIByHand(t *testing.T) {
	l := up(t, Options{Nodes: 1})
	network(t, l, "node1", spyList)
	call := func(verb Verb, pods ...string) string {
		t.Helper()
		out, err := l.CNI(labtest.Within(t, 20*time.Second), "node1", verb, pods...)
		if err != nil {
			t.Errorf("%s %v: %v", verb, pods, err)
		}
		return out
	}
	var result struct {
		CNIVersion string
		IPs        []struct{ Address string }
	}
	added := call(ADD, "default/x")
	if json.Unmarshal([]byte(added), &result) != nil || result.IPs[0].Address != "10.88.1.2/24" {
		t.Errorf("ADD printed %s", added)
	}
	id := podState(t, l, "default/x").ContainerID
	podExec(t, l, "default/x", "true")
	call(ADD, "default/x")
	call(CHECK, "default/x")
	call(STATUS)
	call(GC)
	valid := `"cni.dev/valid-attachments":[{"containerID":"` + id + `","ifname":"eth0"}]`
	if log := spyLog(t, l, "node1"); !strings.Contains(log, valid) {
		t.Errorf("GC did not name the sandbox as valid:\n%s", log)
	}
	call(GC, "default/x")
	if log := spyLog(t, l, "node1"); !strings.Contains(log, `"cni.dev/valid-attachments":[]`) {
		t.Errorf("GC named the sandbox that was left out:\n%s", log)
	}
	if out := call(DEL, "default/x"); out != "" {
		t.Errorf("DEL printed %q", out)
	}
	call(DEL, "default/x") // of an unknown container
	if got := podState(t, l, "default/x"); got.Pod != "" {
		t.Errorf("after DEL there is still %+v", got)
	}

	h, _ := l.Host("node1")
	touch(t, h, "/run/fail-STATUS")
	out, err := l.CNI(t.Context(), "node1", STATUS)
	if err == nil || !strings.Contains(out, `"code": 11`) || !strings.Contains(out, `"msg": "not now"`) {
		t.Errorf("a failed STATUS printed %q, %v", out, err)
	}
	for _, bad := range [][]string{{"VERSION"}, {"ADD"}, {"ADD", "x"}, {"ADD", "../../etc/x"}, {"ADD", "a/b", "c/d"},
		{"STATUS", "a/b"}} {
		if _, err := l.CNI(t.Context(), "node1", Verb(bad[0]), bad[1:]...); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
	if entries, _ := filepath.Glob(l.path("pods/*.json")); len(entries) != 0 {
		t.Errorf("records left: %v", entries)
	}
}
