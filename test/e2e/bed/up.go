package bed

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-cni/fairlead/test/kubebin"
	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/ociimage"
)

// Up creates a bed: when it returns, the control plane serves, and all kubelets have registered their nodes, which are
// not Ready. If it fails, or ctx ends, nothing is left behind. Bed.Down removes the bed; so does the next Up with
// Replace if this process is killed.
func Up(ctx context.Context, o Options) (*Bed, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	if err := preflight(o); err != nil {
		return nil, err
	}
	kube, err := kubeProgram(ctx, o)
	if err != nil {
		return nil, err
	}
	b := &Bed{dir: dirOf(o.Name), spec: spec{Nodes: o.Nodes, IPFamily: o.IPFamily, Datapath: o.Datapath,
		KubeProxy: o.KubeProxy, Audit: o.Audit, NoNodeCIDRs: o.NoNodeCIDRs, Kube: kube, Runtime: o.Runtime}}
	if b.spec.RuntimeDir, err = getRuntime(ctx, progressWriter(o.Progress), o.Runtime); err != nil {
		return nil, err
	}
	if b.lock, err = claim(b.dir); err != nil {
		return nil, err
	}
	if err := b.clear(ctx, o); err != nil {
		b.lock.Close()
		return nil, err
	}
	if err = b.build(ctx, o); err == nil {
		return b, nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("interrupted: %w", err)
	}
	o.Progress("cleaning up")
	return nil, errors.Join(err, b.Down(context.WithoutCancel(ctx)))
}

// clear removes an existing bed if Replace is set; otherwise a bed is an error.
func (b *Bed) clear(ctx context.Context, o Options) error {
	there, err := host.IsPlace(b.dir)
	if err != nil || !there {
		return err
	}
	if !o.Replace {
		return fmt.Errorf("a bed is up in %s: e2e down removes it, another name creates a second one", b.dir)
	}
	o.Progress("removing the bed that was left in " + b.dir)
	return host.RemovePlace(ctx, b.dir)
}

func (b *Bed) build(ctx context.Context, o Options) error {
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return err
	}
	if err := host.MakePlace(b.dir); err != nil {
		return err
	}
	if err := b.makeTool(ctx); err != nil {
		return err
	}
	o.Progress("underlay")
	if err := b.Underlay().Make(ctx); err != nil {
		return err
	}
	for _, name := range []string{underlay.Outside, underlay.Router} {
		if err := b.installTool(b.Host(name)); err != nil {
			return err
		}
	}
	var g errgroup.Group
	ready := make(chan struct{})
	g.Go(func() error {
		defer close(ready)
		return b.makeControlPlane(ctx, o)
	})
	images := append([]string{b.testImage()}, o.Images...)
	for _, name := range b.Nodes() {
		g.Go(func() error {
			o.Progress(name + ": runtime and images")
			if err := b.makeNode(ctx, name, images); err != nil {
				return err
			}
			<-ready
			if b.Plane().PID(controlplane.APIServer) == 0 {
				return nil // makeControlPlane has failed and returns the error
			}
			o.Progress(name + ": kubelet")
			return b.joinNode(name)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := b.awaitNodes(ctx); err != nil {
		return err
	}
	return b.save()
}

func (b *Bed) makeControlPlane(ctx context.Context, o Options) error {
	h, err := host.Create(b.path("hosts"), underlay.ControlPlane)
	if err != nil {
		return err
	}
	if err := b.Underlay().PlugControlPlane(ctx, h); err != nil {
		return err
	}
	if err := b.installTool(h); err != nil {
		return err
	}
	p := b.Plane()
	set, err := controlplane.FlagsOfParts(o.Set, p.Parts())
	if err != nil {
		return err
	}
	if err := p.Prepare(set); err != nil {
		return err
	}
	return p.StartAll(ctx, func(part controlplane.Part) { o.Progress(fmt.Sprintf("control plane: %s", part)) })
}

// program is one that a bed starts, and the Debian package that contains it.
type program struct{ name, debian string }

// programs are those of every bed.
var programs = []program{
	{"runc", "runc"},
	{"/usr/lib/cni/loopback", "containernetworking-plugins"},
	{"ovsdb-server", "openvswitch-switch"},
	{"ovs-vswitchd", "openvswitch-switch"},
	{"iptables", "iptables"},
	{"nft", "nftables"},
}

// programsOf are the additional programs of each runtime.
var programsOf = map[string][]program{
	Containerd: {{"containerd", "containerd"}, {"ctr", "containerd"}},
	CRIO:       {{"conmon", "conmon"}},
}

// preflight returns an error with the remedy if the machine cannot run a bed.
func preflight(o Options) error {
	if os.Geteuid() != 0 {
		return errors.New("a bed creates namespaces, which needs root: run it with sudo")
	}
	var missing, packages []string
	for _, p := range slices.Concat(programs, programsOf[o.Runtime]) {
		if _, err := exec.LookPath(p.name); err != nil {
			missing, packages = append(missing, p.name), append(packages, p.debian)
		}
	}
	if len(missing) > 0 {
		slices.Sort(packages)
		return fmt.Errorf("missing here: %s. On Debian: make deps, or apt-get install %s (and is /usr/sbin in the PATH?)",
			strings.Join(missing, ", "), strings.Join(slices.Compact(packages), " "))
	}
	if err := moreInotify(o); err != nil {
		return err
	}
	for _, file := range o.Images {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("image: %w", err)
		}
	}
	return nil
}

// inotify is the number of inotify instances that a user must be allowed to have: a node has more than ten, and the
// kernel's default is 128 for the whole machine. kubelet exits if it cannot create one.
const inotify = 1024

// moreInotify raises this limit, the only setting of the machine that a bed changes.
func moreInotify(o Options) error {
	const file = "/proc/sys/fs/inotify/max_user_instances"
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	now, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || now >= inotify {
		return err
	}
	o.Progress(fmt.Sprintf("sysctl fs.inotify.max_user_instances: %d is too few for kubelets, now %d", now, inotify))
	if err := os.WriteFile(file, []byte(strconv.Itoa(inotify)), 0o644); err != nil {
		return fmt.Errorf("kubelets need more inotify instances: sysctl -w fs.inotify.max_user_instances=%d: %w", inotify, err)
	}
	return nil
}

// kubeProgram returns the path of the program with all Kubernetes components, and builds it if needed.
func kubeProgram(ctx context.Context, o Options) (string, error) {
	return kubebin.Get(ctx, progressWriter(o.Progress))
}

// progressWriter calls a function for each line.
type progressWriter func(string)

// Write expects whole lines.
func (w progressWriter) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		w(strings.TrimSpace(line))
	}
	return len(p), nil
}

// toolName is the program that the nodes and the test image need.
const toolName = "e2e-tool"

// testImage is the archive of TestImage.
func (b *Bed) testImage() string { return b.path("e2e-tool.tar") }

// builtVar names the environment variable with the directory of the programs that "make build" built: nothing is
// compiled in User-Mode Linux.
const builtVar = "FAIRLEAD_TEST_BINDIR"

// makeTool copies e2e-tool from builtVar's directory, or from beside this program, into the bed, or builds it there. It
// builds the test image from it.
func (b *Bed) makeTool(ctx context.Context) error {
	b.spec.Tool = b.path(toolName)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	built := filepath.Join(orElse(os.Getenv(builtVar), filepath.Dir(self)), toolName)
	if _, err = os.Stat(built); err == nil {
		err = copyStatic(built, b.spec.Tool)
	} else {
		err = b.buildTool(ctx)
	}
	if err != nil {
		return fmt.Errorf("building %s: %w", toolName, err)
	}
	return ociimage.Write(b.testImage(), ociimage.Image{Names: []string{TestImage}, Entrypoint: []string{"/" + toolName},
		Files: []ociimage.File{{Path: "/" + toolName, From: b.spec.Tool}}})
}

// copyStatic copies a statically linked program: an image has no shared libraries.
func copyStatic(from, to string) error {
	file, err := elf.Open(from)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is not static: make build", from)
		}
	}
	program, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, program, 0o755)
}

func (b *Bed) buildTool(ctx context.Context) error {
	source, err := kubebin.Find("test/e2e/" + toolName)
	if err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w",
		"-o", b.spec.Tool, ".")
	build.Dir, build.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}
