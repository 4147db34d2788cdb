package lab

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	authv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/manifest"
)

// ExecKubectl replaces this process with kubectl. It returns only if it fails.
func (l *Lab) ExecKubectl(args []string) error {
	p, err := l.Plane()
	if err != nil {
		return err
	}
	return p.ExecKubectl(args)
}

// Kubectl runs kubectl as the administrator and returns its standard output. An error contains its standard error.
func (l *Lab) Kubectl(ctx context.Context, args ...string) (string, error) {
	return l.kubectlStdin(ctx, nil, args...)
}

func (l *Lab) kubectlStdin(ctx context.Context, stdin []byte, args ...string) (string, error) {
	p, err := l.Plane()
	if err != nil {
		return "", err
	}
	return p.Kubectl(ctx, stdin, args...)
}

// kubectlApply returns the result for each object, in kubectl's words.
func (l *Lab) kubectlApply(source string, data []byte) ([]manifest.Change, error) {
	out, err := l.kubectlStdin(context.Background(), data, "apply", "-f", "-")
	var changes []manifest.Change
	for line := range strings.Lines(out) { // pod/a created
		object, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		changes = append(changes, manifest.Change{Ref: refOf(object), What: what})
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", source, err)
	}
	return changes, err
}

// kubectlDelete requests the deletion of the objects and does not wait for it.
func (l *Lab) kubectlDelete(source string, data []byte) ([]manifest.Change, error) {
	out, err := l.kubectlStdin(context.Background(), data, "delete", "--wait=false", "-o", "name", "-f", "-")
	var changes []manifest.Change
	for line := range strings.Lines(out) { // pod/a
		changes = append(changes, manifest.Change{Ref: refOf(strings.TrimSpace(line)), What: "deleted"})
	}
	if err == nil {
		return changes, nil
	}
	absent := regexp.MustCompile(`\(NotFound\): .*?(\S+)s(?:\.\S+)? "([^"]+)" not found`).FindAllStringSubmatch(err.Error(), -1)
	for _, m := range absent {
		changes = append(changes, manifest.Change{Ref: manifest.Ref{Kind: m[1], Name: m[2]}, What: "not found"})
	}
	if len(absent) > 0 && len(absent) == strings.Count(err.Error(), "Error from server") {
		return changes, nil
	}
	return changes, fmt.Errorf("%s: %w", source, err)
}

func refOf(object string) manifest.Ref {
	kind, name, _ := strings.Cut(object, "/")
	return manifest.Ref{Kind: kind, Name: name}
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
