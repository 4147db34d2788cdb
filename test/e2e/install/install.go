// Package install installs Fairlead in a bed as users do: objects of the chart, and an image that is present on the
// nodes.
package install

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/fairlead-cni/fairlead/test/chart"
	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/kubebin"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/ociimage"
)

// Image is the archive that "make image" writes. A missing archive is an error.
func Image() (string, error) {
	chart, err := Chart()
	if err != nil {
		return "", err
	}
	file := chart + "/../../../out/image/fairlead.tar"
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

// own are the values that the bed needs.
func own(b *bed.Bed) []string {
	values := []string{"image.pullPolicy=Never"} // it is in no registry
	if b.Datapath() == vswitch.Netdev {
		values = append(values, "agent.config.ovsDatapathType=netdev")
	}
	return values
}

// Manifest is the chart rendered with values, in the syntax of "helm template --set", and with the bed's own values.
func Manifest(b *bed.Bed, values ...string) ([]byte, error) {
	dir, err := Chart()
	if err != nil {
		return nil, err
	}
	manifests, _, err := chart.Template(dir, "kube-system", append(own(b), values...)...)
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

// Helm runs Helm as the administrator, in the namespace kube-system and with the files of this machine. It returns both
// streams; an error contains them, too.
func Helm(ctx context.Context, b *bed.Bed, args ...string) (string, error) {
	helm, err := kubebin.GetHelm(ctx, os.Stderr)
	if err != nil {
		return "", err
	}
	argv := append([]string{helm, "--kubeconfig=" + b.Plane().AdminKubeconfig(), "--namespace=kube-system"}, args...)
	return b.NodeExec(ctx, underlay.ControlPlane, argv...)
}

// Sets are the values as flags of Helm, with the bed's own values.
func Sets(b *bed.Bed, values ...string) (flags []string) {
	for _, v := range append(own(b), values...) {
		flags = append(flags, "--set="+v)
	}
	return flags
}

// Chart is the directory of the chart.
func Chart() (string, error) { return kubebin.Find("build/charts/fairlead") }

// NextTag is the tag of the image that Next writes, and the version that its programs report.
const NextTag = "next"

// Next writes an archive of another version of the image to dir: the same programs, linked with another version. Import
// Image first.
func Next(ctx context.Context, dir string) (archive string, err error) {
	base, err := Image()
	if err != nil {
		return "", err
	}
	chart, err := Chart()
	if err != nil {
		return "", err
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags",
		"-s -w -X main.version="+NextTag, "-o", dir+"/", "./cmd/...")
	build.Dir, build.Env = filepath.Join(chart, "../../.."), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building version %s: %w\n%s", NextTag, err, out)
	}
	programs, err := filepath.Glob(dir + "/fairlead*")
	if err != nil {
		return "", err
	}
	var files []ociimage.File
	for _, p := range programs {
		files = append(files, ociimage.File{Path: "/usr/local/bin/" + filepath.Base(p), From: p})
	}
	archive = filepath.Join(dir, NextTag+".tar")
	return archive, ociimage.Extend(archive, base, NextTag, files)
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
