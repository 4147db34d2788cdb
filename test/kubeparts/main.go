// Kubeparts is a Kubernetes cluster in one binary: control plane, kubelet, kube-proxy, kubectl and
// etcd, each the real one. Its name (a symbolic link) or its first argument selects which.
//
// It is a module of its own: k8s.io/kubernetes can be required only together with a replace line for
// each of its 33 staging modules, and these have no place in the product's go.mod.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	parts := map[string]func(){
		"etcd":                    func() { etcdmain.Main(os.Args) },
		"kube-apiserver":          func() { run(apiserver.NewAPIServerCommand()) },
		"kube-controller-manager": func() { run(controllermanager.NewControllerManagerCommand()) },
		"kube-proxy":              func() { run(kubeproxy.NewProxyCommand()) },
		"kube-scheduler":          func() { run(scheduler.NewSchedulerCommand()) },
		"kubectl":                 runKubectl,
		"kubelet":                 func() { run(kubelet.NewKubeletCommand(context.Background())) },
	}
	if part, ok := parts[filepath.Base(os.Args[0])]; ok {
		part()
		return
	}
	if len(os.Args) > 1 {
		if part, ok := parts[os.Args[1]]; ok {
			os.Args = os.Args[1:]
			part()
			return
		}
	}
	names := strings.Join(slices.Sorted(maps.Keys(parts)), ", ")
	fmt.Fprintf(os.Stderr, "usage: kubeparts PART ARGS...\nPART is one of %s\n", names)
	os.Exit(2)
}

func run(command *cobra.Command) {
	os.Exit(cli.Run(command))
}

// runKubectl is apart because kubectl prints its errors itself and derives its exit code from them.
func runKubectl() {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
}
