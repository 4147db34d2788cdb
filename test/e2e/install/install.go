// Package install installs Fairlead in a bed as users do: objects of the chart, and an image that is present on the
// nodes.
package install

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fairlead-cni/fairlead/test/chart"
	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/kubebin"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// Image is the archive that "make image" writes. A missing archive is an error.
func Image() (string, error) {
	root, err := kubebin.Find("build/charts/fairlead")
	if err != nil {
		return "", err
	}
	file := root + "/../../../out/image/fairlead.tar"
	if _, err := os.Stat(file); err != nil {
		return "", fmt.Errorf("no image of Fairlead: %w (make image)", err)
	}
	return file, nil
}

// Steer and Bridge are values with which the agents attach pods to the underlay's VLANs; they differ in uplink.mode. On
// Open vSwitch's userspace datapath a tunnel needs its endpoint on a bridge, so steer has none.
func Steer() []string {
	return []string{"agent.config.enableBridgingMode=true", "agent.config.uplink.mode=steer",
		"agent.config.trafficEncapMode=noEncap"}
}

// Bridge has tunnels between nodes: see Steer.
func Bridge() []string {
	return []string{"agent.config.enableBridgingMode=true", "agent.config.uplink.mode=bridge"}
}

// Manifest is the chart rendered with values, in the syntax of "helm template --set", and with the bed's own values.
func Manifest(b *bed.Bed, values ...string) ([]byte, error) {
	dir, err := kubebin.Find("build/charts/fairlead")
	if err != nil {
		return nil, err
	}
	all := []string{"image.pullPolicy=Never"} // it is in no registry
	if b.Datapath() == vswitch.Netdev {
		all = append(all, "agent.config.ovsDatapathType=netdev")
	}
	manifests, _, err := chart.Template(dir, "kube-system", append(all, values...)...)
	if err != nil {
		return nil, fmt.Errorf("rendering the chart: %w", err)
	}
	return []byte(manifests), nil
}

// Apply applies the result of Manifest. It does not wait.
func Apply(ctx context.Context, b *bed.Bed, values ...string) error {
	manifests, err := Manifest(b, values...)
	if err != nil {
		return err
	}
	_, err = b.KubectlStdin(ctx, manifests, "apply", "-f", "-")
	return err
}

// Program is the path of one of the image's programs, such as fairleadctl. A missing program is an error.
func Program(name string) (string, error) {
	image, err := Image()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(image), "programs/usr/local/bin", name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("no program of the image: %w (make image)", err)
	}
	return path, nil
}
