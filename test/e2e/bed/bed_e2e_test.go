package bed

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const onePodPerNode = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: server}
spec:
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: server, image: "` + TestImage + `", imagePullPolicy: Never, args: [serve]}
---
apiVersion: v1
kind: Service
metadata: {name: server}
spec: {ipFamilyPolicy: PreferDualStack, selector: {app: server}, ports: [{port: 80, targetPort: 8080}]}
`

// A bed with the reference bridge plugin: nodes become Ready, pods run and reach each other and a Service, have the
// boot ID of their node, and recover after a crash. Down leaves nothing behind.
func TestE2EBed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	begun := time.Now()
	progress := func(step string) { t.Logf("[%5.1fs] %s", time.Since(begun).Seconds(), step) }
	b, err := Up(ctx, Options{Name: "bed-test", Replace: true, Progress: progress})
	must(t, err)
	down := func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := b.Down(ctx); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			logState(t, b)
		}
		down()
		nothingIsLeft(t, b)
	})
	progress("up")
	must(t, b.BridgeCNI(ctx))
	must(t, b.WaitReady(ctx))
	progress("Ready")
	_, err = b.KubectlStdin(ctx, []byte(onePodPerNode), "apply", "-f", "-")
	must(t, err)
	_, err = b.Kubectl(ctx, "rollout", "status", "daemonset/server", "--timeout=60s")
	must(t, err)
	progress("pods run")
	talk(ctx, t, b)
	t.Run("boot ID", func(t *testing.T) { bootIDs(ctx, t, b) })

	before := bootID(ctx, t, b, "node2")
	must(t, b.Crash(ctx, "node2"))
	progress("node2 crashed")
	must(t, b.Boot(ctx, "node2"))
	must(t, b.BridgeCNI(ctx)) // routes do not survive a reboot
	if after := bootID(ctx, t, b, "node2"); after == before {
		t.Errorf("boot ID %s after the boot as before", after)
	}
	progress("node2 booted")
	talk(ctx, t, b)
	progress("done")
}

// talk waits until all pods answer each other, directly and through the Service.
func talk(ctx context.Context, t *testing.T, b *Bed) {
	t.Helper()
	client, err := b.Client()
	must(t, err)
	limit := time.Now().Add(90 * time.Second)
	for {
		err := allTalk(ctx, b, func() (names, addrs []string, err error) {
			pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=server"})
			if err != nil {
				return nil, nil, err
			}
			for _, p := range pods.Items {
				names = append(names, p.Name)
				for _, ip := range p.Status.PodIPs {
					addrs = append(addrs, ip.IP)
				}
			}
			if want := 2 * len(b.Nodes()); len(addrs) != want {
				return nil, nil, fmt.Errorf("%d pod addresses, want %d", len(addrs), want)
			}
			return names, addrs, nil
		})
		if err == nil {
			return
		}
		if time.Now().After(limit) {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
	}
}

func allTalk(ctx context.Context, b *Bed, pods func() (names, addrs []string, err error)) error {
	names, addrs, err := pods()
	if err != nil {
		return err
	}
	service, err := b.Kubectl(ctx, "get", "service", "server", "-o", "jsonpath={.spec.clusterIPs[*]}")
	if err != nil {
		return err
	}
	var urls []string
	for _, addr := range addrs {
		urls = append(urls, "http://"+net.JoinHostPort(addr, "8080"))
	}
	for _, addr := range strings.Fields(service) {
		urls = append(urls, "http://"+net.JoinHostPort(addr, "80"))
	}
	for _, name := range names {
		args := append([]string{"exec", name, "--", "/e2e-tool", "get"}, urls...)
		if _, err := b.Kubectl(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

func bootID(ctx context.Context, t *testing.T, b *Bed, node string) string {
	t.Helper()
	out, err := b.NodeExec(ctx, node, "cat", "/proc/sys/kernel/random/boot_id")
	must(t, err)
	return out
}

// bootIDs checks that containers and the API have the boot ID of the node.
func bootIDs(ctx context.Context, t *testing.T, b *Bed) {
	client, err := b.Client()
	must(t, err)
	pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=server"})
	must(t, err)
	seen := map[string]bool{}
	for _, p := range pods.Items {
		want := bootID(ctx, t, b, p.Spec.NodeName)
		got, err := b.Kubectl(ctx, "exec", p.Name, "--", "/e2e-tool", "show", "/proc/sys/kernel/random/boot_id")
		must(t, err)
		node, err := client.CoreV1().Nodes().Get(ctx, p.Spec.NodeName, metav1.GetOptions{})
		must(t, err)
		if got != want || node.Status.NodeInfo.BootID != strings.TrimSpace(want) {
			t.Errorf("%s: the pod sees %q, the API %q, the node %q", p.Spec.NodeName, got, node.Status.NodeInfo.BootID, want)
		}
		seen[want] = true
	}
	if len(seen) != len(b.Nodes()) {
		t.Errorf("boot IDs %v", seen)
	}
}

// logState logs the state of a failed bed.
func logState(t *testing.T, b *Bed) {
	for _, args := range [][]string{{"get", "nodes,pods", "-A", "-o", "wide"}, {"get", "events", "-A"}} {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		out, err := b.Kubectl(ctx, args...)
		cancel()
		t.Logf("%v, %v\n%s", args, err, out)
	}
	for _, node := range b.Nodes() {
		for _, d := range Daemons() {
			t.Logf("%s on %s:\n%s", d, node, b.daemon(node, d).Tail(25))
		}
	}
}

// nothingIsLeft checks that no mount, process, cgroup or file of the bed is left.
func nothingIsLeft(t *testing.T, b *Bed) {
	t.Helper()
	if there, err := host.IsPlace(b.dir); err != nil || there {
		t.Errorf("%s is mounted still: %v, %v", b.dir, there, err)
	}
	for _, file := range []string{b.dir, b.dir + ".lock"} {
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s is left", file)
		}
	}
	const name = "bed-test"
	groups, err := filepath.Glob("/sys/fs/cgroup/*/*" + name + "*")
	must(t, err)
	if len(groups) > 0 {
		t.Errorf("cgroups are left: %v", groups)
	}
	procs, err := filepath.Glob("/proc/[0-9]*")
	must(t, err)
	for _, p := range procs {
		cmdline, _ := os.ReadFile(p + "/cmdline") // of a process that has exited, both are empty
		cgroup, _ := os.ReadFile(p + "/cgroup")
		if strings.Contains(string(cmdline), b.dir) || strings.Contains(string(cgroup), name) {
			t.Errorf("%s is left, of cgroup %s: %q", p, cgroup, cmdline)
		}
	}
}
