package lab

import (
	"context"
	"fmt"
	"strings"

	authv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/manifest"
	"github.com/fairlead-cni/fairlead/test/objects"
)

// ExecKubectl replaces this process with kubectl. It returns only if it fails.
func (l *Lab) ExecKubectl(args []string) error {
	p, err := l.Plane()
	if err != nil {
		return err
	}
	return p.ExecKubectl(args)
}

// Kubectl runs kubectl as the administrator and returns its standard output. An error contains its standard error. It
// is for what kubectl itself prints: Objects costs less.
func (l *Lab) Kubectl(ctx context.Context, args ...string) (string, error) {
	p, err := l.Plane()
	if err != nil {
		return "", err
	}
	return p.Kubectl(ctx, nil, args...)
}

// Objects is a client of the Kubernetes API with the administrator's rights for objects of any kind, usable from
// anywhere.
func (l *Lab) Objects() (*objects.Client, error) {
	p, err := l.Plane()
	if err != nil {
		return nil, err
	}
	l.clientMu.Lock()
	defer l.clientMu.Unlock()
	if l.objects != nil {
		return l.objects, nil
	}
	config, err := p.Config()
	if err != nil {
		return nil, err
	}
	l.objects, err = objects.New(config)
	return l.objects, err
}

// kubeApply applies a manifest to the Kubernetes API, and returns the result for each object as kubectl reports it.
func (l *Lab) kubeApply(source string, data []byte) ([]manifest.Change, error) {
	return l.kubeChange(source, data, (*objects.Client).Apply)
}

// kubeDelete requests the deletion of the objects and does not wait for it.
func (l *Lab) kubeDelete(source string, data []byte) ([]manifest.Change, error) {
	return l.kubeChange(source, data, (*objects.Client).Delete)
}

func (l *Lab) kubeChange(source string, data []byte,
	do func(*objects.Client, context.Context, []byte, string) ([]objects.Change, error)) ([]manifest.Change, error) {
	client, err := l.Objects()
	if err != nil {
		return nil, err
	}
	done, err := do(client, context.Background(), data, "")
	if err != nil {
		err = fmt.Errorf("%s: %w", source, err)
	}
	var changes []manifest.Change
	for _, c := range done {
		kind, name, _ := strings.Cut(c.Object, "/")
		changes = append(changes, manifest.Change{Ref: manifest.Ref{Kind: kind, Name: name}, What: c.What})
	}
	return changes, err
}

// agentToken requests a token of the agents' ServiceAccount, as kubelet does for a pod.
func (l *Lab) agentToken(ctx context.Context) (string, error) {
	client, err := l.Client()
	if err != nil {
		return "", err
	}
	week := int64(7 * 24 * 3600)
	request := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{ExpirationSeconds: &week}}
	answer, err := client.CoreV1().ServiceAccounts("kube-system").CreateToken(ctx, "fairlead-agent", request,
		metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return answer.Status.Token, nil
}

// agentsKubeconfig is the agents' kubeconfig. The token is a file of its own, as in a pod: it may be renewed.
func (l *Lab) agentsKubeconfig() ([]byte, error) {
	p, err := l.Plane()
	if err != nil {
		return nil, err
	}
	ca, err := p.CA()
	if err != nil {
		return nil, err
	}
	return controlplane.Kubeconfig(p.URL(), ca, &clientcmdapi.AuthInfo{TokenFile: agentToken})
}
