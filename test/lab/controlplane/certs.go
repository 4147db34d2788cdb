package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Identities with client certificates. A new API server's default RBAC rules cover all of them.
const (
	admin             = "admin"
	controllerManager = "controller-manager"
	kubeProxy         = "kube-proxy"
	frontProxy        = "front-proxy-client"
	scheduler         = "scheduler"
	kubeletClient     = "apiserver-kubelet-client"
)

// kubelet is the identity of a node's kubelet for the Node authorizer.
func kubelet(node string) string { return "kubelet-" + node }

// authority signs the certificates of one cluster. Its key is only in the directory pki.
type authority struct {
	dir    string // where files are written
	server string // URL of the API server, in kubeconfigs
	cert   *x509.Certificate
	pem    []byte
	key    *ecdsa.PrivateKey
	serial int64
}

// makeCertificates writes all credentials of the cluster into dir: the authority's certificate, the API server's for
// its addresses and names, the key that signs ServiceAccount tokens, and a kubeconfig per identity, one for each
// kubelet included.
func makeCertificates(dir, server string, addrs []netip.Addr, kubelets []string) error {
	a, err := newAuthority(dir, server)
	if err != nil {
		return err
	}
	var ips []net.IP
	for _, addr := range addrs {
		ips = append(ips, addr.AsSlice())
	}
	err = a.issue("apiserver", &x509.Certificate{Subject: pkix.Name{CommonName: "kube-apiserver"}, IPAddresses: ips,
		DNSNames: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}})
	if err != nil {
		return err
	}
	subjects := map[string]pkix.Name{
		admin:             {CommonName: "lab-admin", Organization: []string{"system:masters"}},
		controllerManager: {CommonName: "system:kube-controller-manager"},
		kubeProxy:         {CommonName: "system:kube-proxy"},
		frontProxy:        {CommonName: frontProxy},
		scheduler:         {CommonName: "system:kube-scheduler"},
		kubeletClient:     {CommonName: kubeletClient, Organization: []string{"system:masters"}},
	}
	for _, node := range kubelets {
		subjects[kubelet(node)] = pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
	}
	for name, subject := range subjects {
		if err := a.issue(name, &x509.Certificate{Subject: subject}); err != nil {
			return err
		}
		if err := a.kubeconfig(name); err != nil {
			return err
		}
	}
	return a.serviceAccountKey()
}

func newAuthority(dir, server string) (*authority, error) {
	a := &authority{dir: dir, server: server}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "fairlead-lab-ca"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	a.cert = template // self-signed
	der, err := a.sign(template, &a.key.PublicKey)
	if err != nil {
		return nil, err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := a.write("ca.crt", a.pem); err != nil {
		return nil, err
	}
	return a, a.writeKey("ca.key", a.key)
}

func (a *authority) sign(template *x509.Certificate, key *ecdsa.PublicKey) ([]byte, error) {
	a.serial++
	template.SerialNumber = big.NewInt(a.serial)
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().AddDate(10, 0, 0)
	return x509.CreateCertificate(rand.Reader, template, a.cert, key, a.key)
}

// issue writes NAME.crt and NAME.key.
func (a *authority) issue(name string, template *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	der, err := a.sign(template, &key.PublicKey)
	if err != nil {
		return fmt.Errorf("certificate of %s: %w", name, err)
	}
	if err := a.write(name+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})); err != nil {
		return err
	}
	return a.writeKey(name+".key", key)
}

// kubeconfig writes NAME.kubeconfig, with certificates and key embedded.
func (a *authority) kubeconfig(name string) error {
	cert, err := os.ReadFile(filepath.Join(a.dir, name+".crt"))
	if err != nil {
		return err
	}
	key, err := os.ReadFile(filepath.Join(a.dir, name+".key"))
	if err != nil {
		return err
	}
	data, err := Kubeconfig(a.server, a.pem, &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
	if err != nil {
		return err
	}
	return a.write(name+".kubeconfig", data)
}

// Kubeconfig returns a kubeconfig for the API server at the URL server, with its authority's certificate ca (PEM) and
// the client credentials who.
func Kubeconfig(server string, ca []byte, who *clientcmdapi.AuthInfo) ([]byte, error) {
	const name = "lab"
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	c.AuthInfos[name] = who
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	c.CurrentContext = name
	return clientcmd.Write(*c)
}

func (a *authority) serviceAccountKey() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	if err := a.write("sa.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})); err != nil {
		return err
	}
	return a.writeKey("sa.key", key)
}

func (a *authority) writeKey(name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return a.write(name, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func (a *authority) write(name string, data []byte) error {
	return os.WriteFile(filepath.Join(a.dir, name), data, 0o600)
}
