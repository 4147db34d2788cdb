// Package kubebin builds the Kubernetes programs of tests and keeps them in the cache of package onetime, because the
// first build takes minutes: from the module test/kubeparts a Kubernetes cluster in one program and Kubernetes' own
// tests; from test/coredns the cluster's DNS, from test/policyapi the tests of network-policy-api, from test/cyclonus
// those of cyclonus, from test/helm Helm, and from test/containerd and test/crio container runtimes that Debian lacks.
package kubebin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/fairlead-cni/fairlead/test/onetime"
)

// source is the module of Kubernetes, below the root of the repository.
const source = "test/kubeparts"

// Program is the name of the file: its first argument selects the Kubernetes component.
const Program = "kubeparts"

// ReleaseVariable names the environment variable that selects another minor release of Kubernetes than that of go.mod:
// one of which test/kubeparts has a go-X.Y.mod, such as 1.37.
const ReleaseVariable = "FAIRLEAD_TEST_KUBERNETES"

// kubernetes is what is built of test/kubeparts, from the release that ReleaseVariable selects.
func kubernetes(name string, packages []string) thing {
	t := thing{name: name, module: source, packages: packages}
	if release := os.Getenv(ReleaseVariable); release != "" {
		t.name, t.goMod = name+"-"+release, "go-"+release+".mod"
	}
	return t
}

// Get returns the path of the program. It is built if the cache has none for this source and Go version; the build
// reports to progress. The source is searched for in the directories above the working directory and above this
// program.
func Get(ctx context.Context, progress io.Writer) (string, error) {
	t := kubernetes(Program, []string{"."})
	t.cost = "5 to 20 minutes; downloads 200 MB, needs 3 GiB of memory"
	t.build = func(b builder) error { return b.program(Program, ".") }
	dir, err := kept(ctx, progress, t)
	return filepath.Join(dir, Program), err
}

// Suite is Kubernetes' own end-to-end tests of the network, and the programs that run them, by path.
type Suite struct {
	Tests     string // the tests, a suite of Ginkgo
	Ginkgo    string // runs a suite in several processes
	Agnhost   string // runs in the tests' pods
	Cert, Key string // agnhost's TLS certificate, at the path that it expects in its image
}

// GetSuite returns the programs of the suite, and builds them as Get does.
func GetSuite(ctx context.Context, progress io.Writer) (Suite, error) {
	const tests, ginkgo, agnhost, cert, key = "e2e.test", "ginkgo", "agnhost", "localhost.crt", "localhost.key"
	const image = "k8s.io/kubernetes/test/images/agnhost"
	t := kubernetes("kubesuite", []string{"e2e"})
	t.cost = "2 to 8 minutes; faster where kubeparts was built before"
	t.build = func(b builder) error {
		if err := b.tests(tests, "./e2e"); err != nil {
			return err
		}
		return errors.Join(b.program(ginkgo, "github.com/onsi/ginkgo/v2/ginkgo"),
			b.program(agnhost, image), b.copy(image+"/porter", cert, key))
	}
	dir, err := kept(ctx, progress, t)
	return Suite{Tests: filepath.Join(dir, tests), Ginkgo: filepath.Join(dir, ginkgo),
		Agnhost: filepath.Join(dir, agnhost), Cert: filepath.Join(dir, cert), Key: filepath.Join(dir, key)}, err
}

// GetConntrackServer returns the path of the program that sends clients segments outside of their windows, in the
// suite's test of invalid conntrack states, and builds it as Get does.
func GetConntrackServer(ctx context.Context, progress io.Writer) (string, error) {
	const name, image = "conntrack-server", "k8s.io/kubernetes/test/images/regression-issue-74839"
	t := kubernetes(name, nil)
	t.cost, t.build = "seconds", func(b builder) error { return b.program(name, image) }
	dir, err := kept(ctx, progress, t)
	return filepath.Join(dir, name), err
}

// GetPolicyTests returns the paths of the conformance tests of network-policy-api, and of its CRD, and builds them as
// Get does.
func GetPolicyTests(ctx context.Context, progress io.Writer) (tests, crd string, err error) {
	const name, file = "policyapi.test", "policy.networking.k8s.io_clusternetworkpolicies.yaml"
	dir, err := kept(ctx, progress, thing{name: "policyapi", module: "test/policyapi", packages: []string{"."},
		cost: "1 to 3 minutes", build: func(b builder) error {
			return errors.Join(b.tests(name, "."),
				b.copy("sigs.k8s.io/network-policy-api/apis/v1alpha2", "../../config/crd/experimental/"+file))
		}})
	return filepath.Join(dir, name), filepath.Join(dir, file), err
}

// GetCyclonus returns the paths of the program that runs cyclonus' cases, and of the one that tries connections in
// their pods, and builds them as Get does.
func GetCyclonus(ctx context.Context, progress io.Writer) (generate, worker string, err error) {
	const program, inPods = "generate", "worker"
	dir, err := kept(ctx, progress, thing{name: "cyclonus", module: "test/cyclonus", packages: []string{program, inPods},
		cost: "1 to 3 minutes", build: func(b builder) error {
			return errors.Join(b.program(program, "./"+program), b.program(inPods, "./"+inPods))
		}})
	return filepath.Join(dir, program), filepath.Join(dir, inPods), err
}

// GetCoreDNS returns the path of CoreDNS, and builds it as Get does.
func GetCoreDNS(ctx context.Context, progress io.Writer) (string, error) {
	const name = "coredns"
	dir, err := kept(ctx, progress, thing{name: name, module: "test/coredns", packages: []string{"."},
		cost: "1 to 3 minutes", build: func(b builder) error { return b.program(name, ".") }})
	return filepath.Join(dir, name), err
}

// GetMultus returns the path of the CNI plugin Multus, and builds it as Get does.
func GetMultus(ctx context.Context, progress io.Writer) (string, error) {
	const name = "multus"
	dir, err := kept(ctx, progress, thing{name: name, module: "test/multus", cost: "1 to 3 minutes",
		build: func(b builder) error {
			return b.program(name, "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus")
		}})
	return filepath.Join(dir, name), err
}

// GetContainerd returns the directory with containerd, its shim of runc and ctr, and builds them as Get does.
func GetContainerd(ctx context.Context, progress io.Writer) (string, error) {
	return kept(ctx, progress, thing{name: "containerd", module: "test/containerd", cost: "2 to 8 minutes",
		build: func(b builder) (err error) {
			for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
				err = errors.Join(err, b.program(name, "github.com/containerd/containerd/v2/cmd/"+name))
			}
			return err
		}})
}

// GetCRIO returns the directory with CRI-O, its pinns, which is C, and a program that loads images, and builds them as
// Get does.
func GetCRIO(ctx context.Context, progress io.Writer) (string, error) {
	const module = "github.com/cri-o/cri-o"
	return kept(ctx, progress, thing{name: "crio", module: "test/crio", packages: []string{"load"},
		cost: "1 to 6 minutes; needs a C compiler", build: func(b builder) error {
			// Without these tags it needs C libraries, for signed images and for btrfs, which nodes do not have.
			b.tags = "containers_image_openpgp,exclude_graphdriver_btrfs"
			return errors.Join(b.program("crio", module+"/cmd/crio"), b.program("load", "./load"),
				b.c("pinns", module, "pinns/src"))
		}})
}

// GetHelm returns the path of Helm, and builds it as Get does.
func GetHelm(ctx context.Context, progress io.Writer) (string, error) {
	const name = "helm"
	dir, err := kept(ctx, progress, thing{name: name, module: "test/helm", cost: "1 to 3 minutes",
		build: func(b builder) error { return b.program(name, "helm.sh/helm/v3/cmd/helm") }})
	return filepath.Join(dir, name), err
}

// thing is what is built from a module in one build and kept together.
type thing struct {
	name     string
	module   string   // its directory, below the root of the repository
	goMod    string   // used instead of the go.mod beside it; empty: go.mod
	packages []string // whose source, with go.mod and go.sum, is hashed
	cost     string   // duration of the build, for users who wait
	build    func(builder) error
}

// kept returns the directory of t, and builds it if needed.
func kept(ctx context.Context, progress io.Writer, t thing) (string, error) {
	module, err := Find(t.module)
	if err != nil {
		return "", err
	}
	goMod := cmp.Or(t.goMod, "go.mod")
	content, version, err := read(module, goMod, t.packages)
	if err != nil {
		return "", fmt.Errorf("reading the source of %s: %w", t.name, err)
	}
	key := append(content, runtime.Version()...)
	return onetime.Get(ctx, t.name, key, progress, func(ctx context.Context, dir string, progress io.Writer) error {
		fmt.Fprintf(progress, "%s: from %s, %s\n", t.name, module, t.cost)
		return t.build(builder{ctx: ctx, module: module, goMod: goMod, version: version, dir: dir,
			progress: progress})
	})
}

// Find returns the path of a file or directory of the repository, which it searches for in the directories above the
// working directory and above this program.
func Find(name string) (string, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	for _, dir := range []string{cwd, filepath.Dir(program)} {
		for ; ; dir = filepath.Dir(dir) {
			// Other repositories may have folders of these names, too.
			if exists(filepath.Join(dir, source, "go.mod")) && exists(filepath.Join(dir, name)) {
				return filepath.Join(dir, name), nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", fmt.Errorf("no %s above %s, nor above %s: run this in the repository", name, cwd, filepath.Dir(program))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// read returns everything that the build of the packages depends on, and the version of Kubernetes, if the module
// requires it.
func read(module, modFile string, packages []string) (content []byte, version string, err error) {
	kubernetes := regexp.MustCompile(`(?m)^\tk8s\.io/kubernetes (v\S+)$`)
	goMod := filepath.Join(module, modFile)
	files := []string{goMod, strings.TrimSuffix(goMod, "mod") + "sum"}
	for _, dir := range packages {
		found, err := filepath.Glob(filepath.Join(module, dir, "*.go"))
		if err != nil {
			return nil, "", err
		}
		files = append(files, found...)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, "", err
		}
		content = fmt.Appendf(content, "%s %d\n%s", filepath.Base(file), len(data), data)
		if match := kubernetes.FindSubmatch(data); file == goMod && match != nil {
			version = string(match[1])
		}
	}
	return content, version, nil
}

// builder builds programs of a module into a directory.
type builder struct {
	ctx                         context.Context
	module, goMod, version, dir string
	tags                        string // of Go's build
	progress                    io.Writer
}

// program builds the program of package pkg.
func (b builder) program(name, pkg string) error {
	return b.goTool(name, pkg, "build", "-buildvcs=false")
}

// tests builds a program of the tests of package pkg.
func (b builder) tests(name, pkg string) error { return b.goTool(name, pkg, "test", "-c", "-vet=off") }

// copy copies files beside the source of package pkg.
func (b builder) copy(pkg string, names ...string) error {
	dir, err := b.source(pkg)
	if err != nil {
		return err
	}
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(b.dir, filepath.Base(name)), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// source returns the directory of a package's source or, after the argument -m, of a module's.
func (b builder) source(args ...string) (string, error) {
	cmd := exec.CommandContext(b.ctx, "go", append([]string{"list", "-modfile=" + b.goMod, "-f", "{{.Dir}}"}, args...)...)
	cmd.Dir, cmd.Stderr = b.module, b.progress
	cmd.Env = append(os.Environ(), "GOWORK=off")
	dir, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("looking for the source of %v: %w", args, err)
	}
	return string(bytes.TrimSpace(dir)), nil
}

// c builds a program of the C files in a directory of a Go module.
func (b builder) c(name, module, dir string) error {
	root, err := b.source("-m", module)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(root, dir, "*.c"))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(b.ctx, "gcc", append([]string{"-O2", "-static", "-o", filepath.Join(b.dir, name)}, files...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("gcc of %s, which Debian has in gcc and libc6-dev: %w\n%s", name, err, out)
	}
	return nil
}

// goTool runs the Go tool. Without the version in its linker flags, each Kubernetes component would report v0.0.0.
func (b builder) goTool(name, pkg string, how ...string) error {
	flags := "-s -w"
	for _, where := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		if b.version != "" {
			flags += fmt.Sprintf(" -X %s.gitVersion=%s", where, b.version)
		}
	}
	cmd := exec.CommandContext(b.ctx, "go", append(how, "-modfile="+b.goMod, "-trimpath", "-tags", b.tags, "-ldflags", flags,
		"-o", filepath.Join(b.dir, name), pkg)...)
	cmd.Dir = b.module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = b.progress, io.MultiWriter(b.progress, &failed)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s of %s: %w\n%s", how[0], pkg, err, failed.Bytes())
	}
	return nil
}
