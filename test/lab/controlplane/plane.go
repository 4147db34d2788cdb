package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// Paths on the host.
const (
	pkiDir  = "/run/lab/pki"
	etcdDir = "/run/lab/etcd"

	auditPolicy = "/run/lab/audit-policy.yaml"
	auditLog    = "/run/lab/audit.log"
)

// auditAll logs every request when it is answered, with user, verb and object, and a watch also when it begins.
const auditAll = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// Port is the port of the API server.
const Port = 6443

// Plane is the control plane of one cluster.
type Plane struct {
	// Host is where it runs.
	Host host.Host
	// Program is the path of kubeparts.
	Program string
	// Addrs are the addresses of the host, the primary one first.
	Addrs []netip.Addr
	// ServiceCIDRs are the ranges of ClusterIPs, ClusterCIDRs those of podCIDRs; one of each family.
	ServiceCIDRs, ClusterCIDRs []netip.Prefix
	// Kubelets are the names of the nodes on which real kubelets run. With them there are a scheduler, and the
	// controllers that depend on kubelet's heartbeats; without kubelets there are no heartbeats.
	Kubelets []string
	// Audit enables the API server's audit log: AuditLog.
	Audit bool
}

// Prepare creates keys, certificates and kubeconfigs, and sets flags of components that differ from the lab's.
func (p Plane) Prepare(set map[Part]Flags) error {
	if err := os.MkdirAll(p.Host.Private(pkiDir), 0o700); err != nil {
		return err
	}
	addrs := append([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, p.Addrs...)
	for _, cidr := range p.ServiceCIDRs {
		addrs = append(addrs, cidr.Addr().Next()) // the Service kubernetes
	}
	if err := makeCertificates(p.Host.Private(pkiDir), p.URL(), addrs, p.Kubelets); err != nil {
		return fmt.Errorf("making certificates: %w", err)
	}
	if p.Audit {
		if err := os.WriteFile(p.Host.Private(auditPolicy), []byte(auditAll), 0o644); err != nil {
			return err
		}
	}
	for part, flags := range set {
		if _, err := p.keep(part, flags); err != nil {
			return fmt.Errorf("the flags of %s: %w", part.program(), err)
		}
	}
	return nil
}

// URL is the URL of the API server.
func (p Plane) URL() string {
	return "https://" + net.JoinHostPort(p.Addrs[0].String(), strconv.Itoa(Port))
}

// CA is the authority's certificate, PEM.
func (p Plane) CA() ([]byte, error) { return os.ReadFile(p.file("ca.crt")) }

// AdminKubeconfig is the path of the administrator's kubeconfig, as the host sees it.
func (p Plane) AdminKubeconfig() string { return filepath.Join(pkiDir, admin+".kubeconfig") }

// KubeletKubeconfig is the content of the kubeconfig of a node's kubelet, one of Kubelets.
func (p Plane) KubeletKubeconfig(node string) ([]byte, error) {
	return os.ReadFile(p.file(kubelet(node) + ".kubeconfig"))
}

// AuditLog is the path of the API server's audit log, JSON lines (audit.k8s.io/v1 Event), if Audit is set.
func (p Plane) AuditLog() string { return p.Host.Private(auditLog) }

func (p Plane) file(name string) string { return p.Host.Private(filepath.Join(pkiDir, name)) }

// Client is a client of the API server with the administrator's rights. It connects from the host, wherever it is used.
func (p Plane) Client() (*kubernetes.Clientset, error) {
	config, err := p.Config()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// Config is the configuration of other Kubernetes clients with the administrator's rights.
func (p Plane) Config() (*rest.Config, error) {
	data, err := os.ReadFile(p.file(admin + ".kubeconfig"))
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 500, 1000
	config.Dial = p.dial
	return config, nil
}

// dial connects from the host.
func (p Plane) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = p.Host.Do(func() error {
		conn, err = (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// flags are the lab's flags of a component.
func (p Plane) flags(part Part) Flags {
	switch part {
	case Etcd:
		const client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
		return Flags{"name": "lab", "data-dir": etcdDir, "log-level": "warn", "unsafe-no-fsync": "true",
			"listen-client-urls": client, "advertise-client-urls": client,
			"listen-peer-urls": peer, "initial-advertise-peer-urls": peer, "initial-cluster": "lab=" + peer}
	case APIServer:
		return p.apiServerFlags()
	case Scheduler:
		return p.schedulerFlags()
	default:
		return p.kcmFlags()
	}
}

func (p Plane) apiServerFlags() Flags {
	pki := func(name string) string { return filepath.Join(pkiDir, name) }
	bind := "0.0.0.0"
	if p.Addrs[len(p.Addrs)-1].Is6() {
		bind = "::"
	}
	f := Flags{
		"etcd-servers": "http://127.0.0.1:2379",
		"bind-address": bind, "secure-port": strconv.Itoa(Port), "advertise-address": p.Addrs[0].String(),
		"tls-cert-file": pki("apiserver.crt"), "tls-private-key-file": pki("apiserver.key"),
		"client-ca-file":                     pki("ca.crt"),
		"service-account-issuer":             "https://kubernetes.default.svc",
		"service-account-key-file":           pki("sa.pub"),
		"service-account-signing-key-file":   pki("sa.key"),
		"requestheader-client-ca-file":       pki("ca.crt"),
		"requestheader-allowed-names":        frontProxy,
		"requestheader-username-headers":     "X-Remote-User",
		"requestheader-group-headers":        "X-Remote-Group",
		"requestheader-extra-headers-prefix": "X-Remote-Extra-",
		"proxy-client-cert-file":             pki(frontProxy + ".crt"),
		"proxy-client-key-file":              pki(frontProxy + ".key"),
		"authorization-mode":                 "Node,RBAC",
		"enable-admission-plugins":           "NodeRestriction",
		"allow-privileged":                   "true",
		"service-cluster-ip-range":           join(p.ServiceCIDRs),
		"profiling":                          "false",
		"kubelet-preferred-address-types":    "InternalIP", // node names are not in DNS
		// SIGTERM closes watches after this time; without it the API server waits a minute for them.
		"shutdown-watch-termination-grace-period": "1s",
	}
	if p.Audit {
		f["audit-policy-file"], f["audit-log-path"] = auditPolicy, auditLog
	}
	if len(p.Kubelets) > 0 {
		f["kubelet-client-certificate"], f["kubelet-client-key"] = pki(kubeletClient+".crt"), pki(kubeletClient+".key")
	}
	return f
}

func (p Plane) schedulerFlags() Flags {
	kubeconfig := filepath.Join(pkiDir, scheduler+".kubeconfig")
	return Flags{"kubeconfig": kubeconfig, "authentication-kubeconfig": kubeconfig, "authorization-kubeconfig": kubeconfig,
		"leader-elect": "false", "bind-address": "127.0.0.1"}
}

// kcmFlags are the flags of kube-controller-manager. Without kubelets they disable the controllers that depend on
// kubelet's heartbeats, which would evict all pods after five minutes.
func (p Plane) kcmFlags() Flags {
	pki := func(name string) string { return filepath.Join(pkiDir, name) }
	kubeconfig := pki(controllerManager + ".kubeconfig")
	f := Flags{
		"kubeconfig": kubeconfig, "authentication-kubeconfig": kubeconfig, "authorization-kubeconfig": kubeconfig,
		"client-ca-file": pki("ca.crt"), "root-ca-file": pki("ca.crt"),
		"service-account-private-key-file": pki("sa.key"), "use-service-account-credentials": "true",
		"cluster-signing-cert-file": pki("ca.crt"), "cluster-signing-key-file": pki("ca.key"),
		"allocate-node-cidrs": "true", "cluster-cidr": join(p.ClusterCIDRs),
		"service-cluster-ip-range": join(p.ServiceCIDRs),
		"leader-elect":             "false", "bind-address": "127.0.0.1",
		"kube-api-qps": "300", "kube-api-burst": "500", // the default client limits slow down its start
	}
	if len(p.Kubelets) == 0 {
		f["controllers"] = "*,-node-lifecycle-controller,-taint-eviction-controller"
	}
	switch {
	case len(p.ClusterCIDRs) > 1:
		f["node-cidr-mask-size-ipv4"], f["node-cidr-mask-size-ipv6"] = "24", "64"
	case p.ClusterCIDRs[0].Addr().Is4():
		f["node-cidr-mask-size"] = "24"
	default:
		f["node-cidr-mask-size"] = "64"
	}
	return f
}

func join(cidrs []netip.Prefix) string {
	var out []string
	for _, c := range cidrs {
		out = append(out, c.String())
	}
	return strings.Join(out, ",")
}

// ClusterCIDR is kube-controller-manager's flag; empty if it is not set.
func (p Plane) ClusterCIDR() (string, error) {
	flags, err := p.allFlags(KCM, nil)
	return strings.TrimPrefix(flags["cluster-cidr"], removed), err
}

// startTimeout is the time limit for a component to serve. In User-Mode Linux beside ten busy processes the API server
// has taken more than two minutes.
const startTimeout = 5 * time.Minute

// await waits until the component serves, and returns early if it has exited.
func (p Plane) await(ctx context.Context, part Part) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client, err := p.Client()
	if err != nil {
		return err
	}
	for {
		err := p.Serves(ctx, client, part)
		if err == nil {
			return nil
		}
		if p.PID(part) == 0 {
			return errors.New("it has ended")
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Serves returns nil if the component works: etcd accepts connections, the API server is ready, kube-controller-manager
// has created the ServiceAccount without which no Pod is accepted, the scheduler is healthy.
func (p Plane) Serves(ctx context.Context, client kubernetes.Interface, part Part) error {
	if p.PID(part) == 0 {
		return fmt.Errorf("%s does not run", part.program())
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if part == Etcd {
		conn, err := p.dial(ctx, "tcp", "127.0.0.1:2379")
		if err == nil {
			conn.Close()
		}
		return err
	}
	if part == APIServer {
		return client.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	}
	if part == Scheduler {
		return p.healthy(ctx, 10259)
	}
	if err := p.healthy(ctx, 10257); err != nil {
		return err
	}
	_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return errors.New("it has not created the ServiceAccount default/default yet")
	}
	return err
}

// healthy requests the health of kube-controller-manager or the scheduler at its port, which has a self-signed
// certificate.
func (p Plane) healthy(ctx context.Context, port int) error {
	url := fmt.Sprintf("https://127.0.0.1:%d/healthz", port)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DialContext: p.dial, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("it is not healthy: %s", answer.Status)
	}
	return nil
}
