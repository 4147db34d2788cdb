package kube

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

// echo is an ICMP echo request or reply in a captured packet, in tunnel packets or not.
type echo struct {
	on                          string // the interface
	request, outbound, tunneled bool   // tunneled: in a tunnel packet
	v6                          bool
}

// captured reads a capture file, whose packets must be in order on each interface.
func captured(t *testing.T, data []byte) (interfaces []string, count int, echoes map[echo]bool) {
	t.Helper()
	r, err := pcapgo.NewNgReader(bytes.NewReader(data), pcapgo.NgReaderOptions{WantMixedLinkType: true})
	must(t, err)
	echoes = map[echo]bool{}
	last := map[string]time.Time{} // by interface: packets of a busy node come after newer ones of others
	for {
		frame, info, options, err := r.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		of, err := r.Interface(info.InterfaceIndex)
		must(t, err)
		if info.Timestamp.Before(last[of.Name]) {
			t.Errorf("on %s a packet of %s comes behind one of %s", of.Name, info.Timestamp, last[of.Name])
		}
		last[of.Name] = info.Timestamp
		count++
		e := echo{on: of.Name, outbound: options.Flags.Direction == pcapgo.NgEpbFlagDirectionOutbound}
		for _, l := range gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default).Layers() {
			switch l := l.(type) {
			case *layers.Geneve:
				e.tunneled = true
			case *layers.ICMPv4:
				e.request = l.TypeCode.Type() == layers.ICMPv4TypeEchoRequest
				echoes[e] = true
			case *layers.ICMPv6:
				e.v6 = true
				e.request = l.TypeCode.Type() == layers.ICMPv6TypeEchoRequest
				if e.request || l.TypeCode.Type() == layers.ICMPv6TypeEchoReply {
					echoes[e] = true
				}
			}
		}
	}
	for i := range r.NInterfaces() {
		of, err := r.Interface(i)
		must(t, err)
		interfaces = append(interfaces, of.Name)
	}
	slices.Sort(interfaces)
	return interfaces, count, echoes
}

// capturing is a running "fairleadctl capture".
type capturing struct {
	*exec.Cmd
	mu   sync.Mutex
	text strings.Builder // both streams, or stderr
}

// Write implements io.Writer.
func (c *capturing) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(p)
}

func (c *capturing) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// outside returns a kubeconfig of the administrator for programs outside of the lab.
func (b *bed) outside(t *testing.T) (kubeconfig string) {
	t.Helper()
	config, err := b.plane.Config()
	must(t, err)
	server, err := url.Parse(config.Host)
	must(t, err)
	door, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { door.Close() })
	go func() {
		for {
			in, err := door.Accept()
			if err != nil {
				return // closed
			}
			out, err := config.Dial(context.Background(), "tcp", server.Host)
			if err != nil {
				in.Close()
				continue
			}
			for from, to := range map[net.Conn]net.Conn{in: out, out: in} {
				go func() { _, _ = io.Copy(to, from); to.Close() }()
			}
		}
	}()
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(clientcmdapi.Config{CurrentContext: "lab",
		Contexts: map[string]*clientcmdapi.Context{"lab": {Cluster: "lab", AuthInfo: "lab"}},
		Clusters: map[string]*clientcmdapi.Cluster{"lab": {Server: "https://" + door.Addr().String(), TLSServerName: server.Hostname(),
			CertificateAuthorityData: config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"lab": {ClientCertificateData: config.CertData,
			ClientKeyData: config.KeyData}}}, kubeconfig))
	return kubeconfig
}

// begin starts "fairleadctl capture" by that command, and waits until it captures. Packets may go to out.
func begin(t *testing.T, cmd *exec.Cmd, out io.Writer) *capturing {
	t.Helper()
	c := &capturing{Cmd: cmd}
	c.Stdout, c.Stderr = c, c
	if out != nil {
		c.Stdout = out
	}
	must(t, c.Start())
	wait(t, 30*time.Second, func() string {
		if said := c.said(); !strings.Contains(said, "capturing for ") {
			return "the capture does not begin: " + said
		}
		return ""
	})
	return c
}

// captureTo returns "fairleadctl capture" of pod a with c as the other end, as an administrator outside of the lab runs
// it.
func (b *bed) captureTo(t *testing.T, file string) func(more ...string) *exec.Cmd {
	t.Helper()
	args := []string{"capture", "a", "--to=default/c", "--kubeconfig=" + b.outside(t), "-w", file,
		"--on-node=" + filepath.Join(binDir, "lab") + " node --dir " + b.Dir() + " {node} -- fairleadctl"}
	return func(more ...string) *exec.Cmd {
		return exec.CommandContext(labtest.Within(t, time.Minute), filepath.Join(binDir, "fairleadctl"), append(args, more...)...)
	}
}

// A ping between pods of two nodes is captured in both directions, on both pods' interfaces and, in tunnel packets, on
// both NICs; another pod's ping is not. Ctrl-C leaves a complete file.
func TestRootCapture(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "b@node1", "c@node2")
	b.ping(t, "a", "c", 20*time.Second)
	file := filepath.Join(t.TempDir(), "a-c.pcapng")
	c := begin(t, b.captureTo(t, file)("--duration=1m"), nil)
	b.ping(t, "a", "c", 20*time.Second)
	b.ping(t, "b", "c", 20*time.Second)
	must(t, c.Process.Signal(os.Interrupt))
	if err := c.Wait(); err != nil || !strings.Contains(c.said(), "ended: interrupt") {
		t.Fatalf("an interrupted capture: %v\n%s", err, c.said())
	}
	data, err := os.ReadFile(file)
	must(t, err)
	interfaces, _, echoes := captured(t, data)
	// The lab's transport interface is a bridge of Open vSwitch with the NIC: the tunnel's packets are on the NIC only.
	want := []string{"br-phy@node1", "br-phy@node2", "default/a@node1", "default/c@node2", "eth0@node1", "eth0@node2",
		"fairlead-gw0@node1", "fairlead-gw0@node2"}
	if !slices.Equal(interfaces, want) {
		t.Errorf("interfaces %q, want %q", interfaces, want)
	}
	for _, e := range expectedEchoes() {
		if !echoes[e] {
			t.Errorf("missing %+v", e)
		}
		delete(echoes, e)
	}
	if len(echoes) > 0 {
		t.Errorf("unexpected: %+v", echoes)
	}
	if t.Failed() {
		t.Log(c.said())
	}
}

// Each limit ends a capture, which reports it and leaves a complete file. A part of a capture that cannot be made is an
// error.
func TestRootCaptureEnds(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "c@node2")
	file := filepath.Join(t.TempDir(), "a-c.pcapng")
	command := b.captureTo(t, file)
	stop := b.steady(t, "a", "c", 0)
	for limit, says := range map[string]string{"--packets=7": "7 packets, ", "--size=1000": "does not fit in 1000 bytes",
		"--duration=3s": "the duration of 3s is over"} {
		c := begin(t, command(limit), nil)
		if err := c.Wait(); err != nil || !strings.Contains(c.said(), says) {
			t.Errorf("%s: %v, want %q\n%s", limit, err, says, c.said())
		}
		data, err := os.ReadFile(file)
		must(t, err)
		if _, n, _ := captured(t, data); n == 0 || limit == "--packets=7" && n != 7 || limit == "--size=1000" && n > 9 {
			t.Errorf("%s: the file has %d packets", limit, n)
		}
	}
	// On the node alone, into a pipe, to the other end's address, and with standard input.
	var packets bytes.Buffer
	to := b.pod(t, "c").ips[0].String()
	c := begin(t, b.NodeCommand(labtest.Within(t, time.Minute), "node1", "fairleadctl", "capture", "a", "--node-local", "--to", to,
		"-w", "-", "--packets=5"), &packets)
	if err := c.Wait(); err != nil {
		t.Errorf("%v: %s", err, c.said())
	}
	if interfaces, n, _ := captured(t, packets.Bytes()); n != 5 || !slices.Contains(interfaces, "default/a@node1") {
		t.Errorf("%d packets of %q in the pipe\n%s", n, interfaces, c.said())
	}
	stop()
	for _, wrong := range []struct {
		says string
		args []string
	}{
		{"there is no pod default/none", []string{"--to=none"}},
		{"exit status 1", []string{"--on-node=false {node}"}},
		{"no agent pod runs there", []string{"--on-node="}},
	} {
		out, err := command(wrong.args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), wrong.says) {
			t.Errorf("%q: %v, want %q: %s", wrong.args, err, wrong.says, out)
		}
	}
}

// A user without the right to run commands in the agent's pod gets that error, and the alternative. The e2e tests cover
// users with the right.
func TestRootCaptureRights(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1")
	const name = "agent-node1"
	pods := b.client.CoreV1().Pods("kube-system")
	_, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/name": "fairlead-agent"}},
		Spec:       corev1.PodSpec{NodeName: "node1", HostNetwork: true, Containers: []corev1.Container{{Name: "fairlead-agent", Image: "i"}}},
	}, metav1.CreateOptions{})
	must(t, err)
	now := int64(0)
	t.Cleanup(func() {
		must(t, pods.Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	})
	wait(t, 20*time.Second, func() string {
		p, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		if p.Status.Phase != corev1.PodRunning {
			return name + " does not run"
		}
		return ""
	})
	args := []string{"capture", "a", "-w", "/run/a.pcapng"}
	if out, code := b.agentPod(t)(args...); code != 1 || !strings.Contains(out, "you may not run commands in the agent's pod kube-system/"+name) {
		t.Errorf("without rights: exit code %d: %s", code, out)
	}
}

// expectedEchoes are a ping of the pod a on node1 to c on node2, and the replies, of both families.
func expectedEchoes() (all []echo) {
	for _, request := range []bool{true, false} {
		for _, v6 := range []bool{true, false} {
			all = append(all, echo{on: "default/a@node1", request: request, outbound: !request, v6: v6},
				echo{on: "default/c@node2", request: request, outbound: request, v6: v6},
				echo{on: "eth0@node1", request: request, outbound: request, v6: v6, tunneled: true},
				echo{on: "eth0@node2", request: request, outbound: !request, v6: v6, tunneled: true})
		}
	}
	return all
}
