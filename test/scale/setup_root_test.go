package scale

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/apitest"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// binDir is where labtest.Main has built the programs; empty if it did not build them.
var binDir string

// theServer is the API server of this package's benchmarks: see serve.
var theServer serve

// serve starts an API server on first use, and other programs beside it. The kernel kills these with the thread that
// started them, and labs terminate threads: that thread therefore does nothing else.
type serve struct {
	once   sync.Once
	server apitest.Shared
	todo   chan func()
}

func (s *serve) get(b *testing.B) *apitest.Server {
	b.Helper()
	s.once.Do(func() {
		s.todo = make(chan func())
		go func() {
			runtime.LockOSThread()
			for do := range s.todo {
				do()
			}
		}()
		s.do(func() { s.server.Get(b) })
	})
	return s.server.Get(b)
}

// do calls f on that thread.
func (s *serve) do(f func()) {
	done := make(chan struct{})
	s.todo <- func() {
		defer close(done)
		f()
	}
	<-done
}

type tests struct{ *testing.M }

// Run stops the API server as well.
func (m tests) Run() int {
	code := m.M.Run()
	if err := theServer.server.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func TestMain(m *testing.M) { labtest.Main(tests{m}, &binDir) }

// node is where the agent runs, with addresses for 253 pods.
const node = "node1"

// bed is a node of a lab whose agent uses an API server, and that server.
type bed struct {
	b       *testing.B
	cluster *Cluster
	lab     *lab.Lab
	host    host.Host
	door    *Door
	pid     int // of the agent
	pods    int // of the node
	nodes   int // peers
}

func newBed(b *testing.B) *bed {
	b.Helper()
	return newBedOn(b, &theServer)
}

func newBedOn(b *testing.B, s *serve) *bed {
	b.Helper()
	if os.Geteuid() != 0 {
		b.Skip("SKIPPED, NOTHING WAS MEASURED: needs root")
	}
	x := &bed{b: b}
	var err error
	x.cluster, err = Of(s.get(b))
	x.must(err)
	dir := filepath.Join("/run", fmt.Sprintf("fairlead-scale-%d", os.Getpid()))
	x.lab, err = lab.Up(b.Context(), lab.Options{Dir: dir, BinDir: binDir, Nodes: 1, Datapath: "netdev", NoAgent: true,
		IPFamily: underlay.IPv4, ProductIntervals: true,
		Config: []byte("manifestsDir: null\nclientConnection: {kubeconfig: /etc/fairlead/kubeconfig}\nreachability: none\n")})
	x.must(err)
	b.Cleanup(func() {
		if err := lab.Down(context.Background(), dir, nil); err != nil {
			b.Error(err)
		}
	})
	x.host, err = x.lab.Host(node)
	x.must(err)
	x.connect()
	return x
}

func (x *bed) must(err error) {
	x.b.Helper()
	must(x.b, err)
}

// connect makes the API server reachable from the node, at the server's own address, and grants the agent its
// permissions.
func (x *bed) connect() {
	x.b.Helper()
	x.must(x.cluster.Apply(x.b.Context(), "../../build/manifests/fairlead.yaml",
		"app.kubernetes.io/component=rbac,app.kubernetes.io/name=fairlead-agent"))
	token, err := x.cluster.AgentToken(x.b.Context())
	x.must(err)
	ca, err := os.ReadFile(x.cluster.CA())
	x.must(err)
	x.must(os.WriteFile(x.host.Private("/etc/fairlead/token"), []byte(token), 0o600))
	x.must(os.WriteFile(x.host.Private("/etc/fairlead/ca.crt"), ca, 0o600))
	x.must(apitest.Kubeconfig(x.host.Private("/etc/fairlead/kubeconfig"), x.cluster.URL, "/etc/fairlead/ca.crt",
		"/etc/fairlead/token"))
	address := strings.TrimPrefix(x.cluster.URL, "https://")
	x.must(x.host.Do(func() error {
		l, err := net.Listen("tcp", address)
		if err == nil {
			x.door = OpenDoor(l, address)
		}
		return err
	}))
	x.b.Cleanup(func() {
		if err := x.door.Close(); err != nil {
			x.b.Error(err)
		}
	})
	own := Node(0)
	own.Name, own.Spec.PodCIDR, own.Spec.PodCIDRs = node, "10.77.1.0/24", []string{"10.77.1.0/24"}
	own.Status.Addresses[0].Address = "192.168.77.11"
	_, err = x.cluster.Client.CoreV1().Nodes().Create(x.b.Context(), own, metav1.CreateOptions{})
	x.must(err)
	x.b.Cleanup(func() {
		x.must(x.cluster.Client.CoreV1().Nodes().DeleteCollection(context.Background(), metav1.DeleteOptions{},
			metav1.ListOptions{}))
	})
}

// peers creates Nodes until there are n others.
func (x *bed) peers(n int) {
	x.b.Helper()
	x.must(x.cluster.Nodes(x.b.Context(), x.nodes, n))
	x.nodes = n
}

// start starts the agent and returns the time until it answered CNI requests.
func (x *bed) start() (took time.Duration) {
	x.b.Helper()
	begin := time.Now()
	x.must(x.lab.AgentStart(x.b.Context(), node))
	deadline := begin.Add(time.Minute)
	for {
		_, err := x.get("/readyz")
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			x.b.Fatalf("the agent is not ready: %v\n%s", err, x.log())
		}
		time.Sleep(2 * time.Millisecond)
	}
	took = time.Since(begin)
	s, err := x.lab.AgentState(x.b.Context(), node)
	x.must(err)
	x.pid = s.PID
	return took
}

// log is the tail of the agent's log.
func (x *bed) log() []byte {
	path, err := x.lab.AgentLog(node)
	x.must(err)
	log, err := os.ReadFile(path)
	x.must(err)
	return log[max(0, len(log)-4000):]
}

func (x *bed) stop() {
	x.b.Helper()
	x.must(x.lab.AgentStop(x.b.Context(), node))
}

// get requests a path from the agent.
func (x *bed) get(path string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = x.host.Do(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
				return err
			})
			return conn, err
		}}}
	r, err := client.Get("http://127.0.0.1:10350" + path)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = errors.New(string(body))
	}
	return string(body), err
}

// metrics are the agent's metrics, by name with labels.
func (x *bed) metrics() map[string]float64 {
	x.b.Helper()
	text, err := x.get("/metrics")
	x.must(err)
	out := map[string]float64{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if name, value, found := strings.Cut(lines.Text(), " "); found && name != "#" {
			out[name], _ = strconv.ParseFloat(value, 64)
		}
	}
	return out
}

// network is the one that pods of the node join.
const network = `{"cniVersion": "1.0.0", "name": "fairlead", "plugins": [{"type": "fairlead"}]}`

// add adds pods to the node until it has n.
func (x *bed) add(n int) {
	x.b.Helper()
	list, err := libcni.ConfListFromBytes([]byte(network))
	x.must(err)
	for ; x.pods < n; x.pods++ {
		netns := fmt.Sprintf("/run/netns/scale-%d", x.pods)
		x.must(x.host.MakeNetns(netns))
		conf := &libcni.RuntimeConf{ContainerID: fmt.Sprintf("scale-%d", x.pods), NetNS: netns, IfName: "eth0"}
		x.must(x.host.Do(func() error {
			_, err := libcni.NewCNIConfig([]string{"/opt/cni/bin"}, nil).AddNetworkList(x.b.Context(), list, conf)
			return err
		}))
	}
}
