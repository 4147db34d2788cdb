package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strings"

	"github.com/fairlead-cni/fairlead/test/kubebin"
	"github.com/fairlead-cni/fairlead/test/ociimage"
)

// dnsImage is the name of the image in dns.yaml.
const dnsImage = "registry.k8s.io/coredns/coredns:v1.14.2"

// writeImages writes an archive of the images that the tests' pods use. All have one layer: agnhost, CoreDNS, the
// worker of cyclonus' cases, the server of the test of invalid conntrack states, and the programs of this machine that
// tests call from a shell. The images differ in their entrypoints.
func writeImages(ctx context.Context, suite kubebin.Suite, coredns, archive string) error {
	names, err := imageNames(ctx, suite)
	if err != nil {
		return err
	}
	const dns, dnsBefore = "glibc-dns-testing", "jessie-dnsutils" // its name before Kubernetes 1.36
	names[dns] = append(names[dns], names[dnsBefore]...)
	names["agnhost"] = append(names["agnhost"], policyAPIImage, cyclonusImage)
	files, err := rootFiles(ctx, suite, coredns)
	if err != nil {
		return err
	}
	images := []ociimage.Image{{Names: []string{dnsImage}, Entrypoint: []string{"/coredns"}}}
	for name, start := range map[string]ociimage.Image{
		dns:       {Cmd: []string{"bash"}},
		"agnhost": {Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}},
		"busybox": {Cmd: []string{"sh"}},
		"nginx":   {Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}}, // tests request no page of it
		"pause":   {Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}},

		"regression-issue-74839": {Entrypoint: []string{"/conntrack-server"}},
	} {
		if start.Names = names[name]; start.Names == nil {
			return fmt.Errorf("the suite lists no image %s", name)
		}
		images = append(images, start)
	}
	for i := range images {
		images[i].Env, images[i].Files = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, files
	}
	return ociimage.Write(archive, images...)
}

// imageNames returns the full names of the suite's images, by their short names. There may be several versions of one,
// which are all the same here.
func imageNames(ctx context.Context, suite kubebin.Suite) (map[string][]string, error) {
	cmd := exec.CommandContext(ctx, suite.Tests, "-list-images")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the suite's images: %w", err)
	}
	names := map[string][]string{}
	for full := range strings.FieldsSeq(string(out)) {
		name, _, _ := strings.Cut(path.Base(full), ":")
		if strings.HasPrefix(full, "registry.k8s.io/") { // others are private, and must not be found
			names[name] = append(names[name], full)
		}
	}
	return names, nil
}

// rootFiles are the files of the images.
func rootFiles(ctx context.Context, suite kubebin.Suite, coredns string) ([]ociimage.File, error) {
	// busybox has a shell as well, but that prefers its own nc to the one that the tests expect; and busybox's wget,
	// which is static, segfaults when it loads the C library's NSS modules.
	files, err := ociimage.Programs(ctx, "sh", "bash", "curl", "dig", "getent", "ip", "nc", "nslookup", "ss", "wget",
		"busybox")
	if err != nil {
		return nil, fmt.Errorf("a program for the tests' pods: %w: run make deps", err)
	}
	_, worker, err := kubebin.GetCyclonus(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	conntrack, err := kubebin.GetConntrackServer(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	files = append(files,
		ociimage.File{Path: "/conntrack-server", From: conntrack},
		ociimage.File{Path: "/agnhost", From: suite.Agnhost},
		ociimage.File{Path: "/localhost.crt", From: suite.Cert, Mode: 0o644},
		ociimage.File{Path: "/localhost.key", From: suite.Key, Mode: 0o644},
		ociimage.File{Path: "/coredns", From: coredns},
		ociimage.File{Path: "/worker", From: worker},
		ociimage.File{Path: "/bin", Mode: os.ModeSymlink, Link: "usr/bin"},
		ociimage.File{Path: "/etc/nsswitch.conf", Mode: 0o644, Data: []byte("hosts: files dns\n")},
		ociimage.File{Path: "/etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0:root:/:/bin/sh\n")},
		ociimage.File{Path: "/etc/group", Mode: 0o644, Data: []byte("root:x:0:\n")},
		ociimage.File{Path: "/tmp", Mode: os.ModeDir | os.ModeSticky | 0o777},
		ociimage.File{Path: "/uploads", Mode: os.ModeDir | 0o777},
	)
	applets, err := exec.CommandContext(ctx, "busybox", "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("listing busybox's applets: %w", err)
	}
	for applet := range strings.FieldsSeq(string(applets)) {
		// A standalone program of that name above takes precedence.
		files = append(files, ociimage.File{Path: "/usr/bin/" + applet, Mode: os.ModeSymlink, Link: "busybox"})
	}
	return files, nil
}
