package cluster

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/e2e/install"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// Run runs kubectl, which must succeed.
func (c *Cluster) Run(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	out, err := c.Kubectl(ctx, args...)
	Must(t, err)
	return out
}

// Apply applies manifests.
func (c *Cluster) Apply(t testing.TB, manifests []byte) {
	t.Helper()
	// A new admission policy of IPPools takes effect a moment later.
	Eventually(t, func() error {
		_, err := c.KubectlStdin(t.Context(), manifests, "apply", "-f", "-")
		return err
	})
}

// Running waits until count pods of an app are ready, and returns them.
func (c *Cluster) Running(t testing.TB, app string, count int) (ready []corev1.Pod) {
	t.Helper()
	Eventually(t, func() error {
		ready = nil
		list, err := c.API.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return err
		}
		for _, p := range list.Items {
			is := slices.ContainsFunc(p.Status.Conditions, func(s corev1.PodCondition) bool {
				return s.Type == corev1.PodReady && s.Status == corev1.ConditionTrue
			})
			if is && p.DeletionTimestamp == nil {
				ready = append(ready, p)
			}
		}
		if len(ready) != count {
			return fmt.Errorf("%d of %d pods of %s are ready", len(ready), count, app)
		}
		return nil
	})
	return ready
}

// Tool runs e2e-tool in a pod of the test image.
func (c *Cluster) Tool(ctx context.Context, pod string, args ...string) (string, error) {
	return c.Kubectl(ctx, append([]string{"exec", pod, "--", "/e2e-tool"}, args...)...)
}

// Get requests URLs from a pod until all answer, and returns a line for each: NAME LOCAL REMOTE, as the server sees it.
func (c *Cluster) Get(t testing.TB, pod string, urls ...string) (out string) {
	t.Helper()
	Eventually(t, func() (err error) {
		out, err = c.Tool(t.Context(), pod, append([]string{"get"}, urls...)...)
		return err
	})
	return out
}

// Outside requests a URL from the host beyond the router.
func (c *Cluster) Outside(ctx context.Context, url string) error {
	_, err := c.NodeExec(ctx, underlay.Outside, bed.Tool, "get", url)
	return err
}

// URLs are the URLs of these addresses with a port.
func URLs(port string, addrs ...string) (urls []string) {
	for _, a := range addrs {
		urls = append(urls, "http://"+net.JoinHostPort(a, port)+"/")
	}
	return urls
}

// Addrs are the addresses of pods, pod by pod.
func Addrs(pods ...corev1.Pod) (addrs []string) {
	for _, p := range pods {
		for _, ip := range p.Status.PodIPs {
			addrs = append(addrs, ip.IP)
		}
	}
	return addrs
}

// Fairleadctl runs the image's fairleadctl beside the API server, as the administrator. It returns both streams; an
// error contains them, too.
func (c *Cluster) Fairleadctl(t *testing.T, args ...string) (string, error) {
	t.Helper()
	program, err := install.Program("fairleadctl")
	Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	command := append([]string{program, "--kubeconfig=" + c.Plane().AdminKubeconfig()}, args...)
	return c.NodeExec(ctx, underlay.ControlPlane, command...)
}
