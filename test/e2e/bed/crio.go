package bed

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// crio is CRI-O as the runtime of a bed's nodes, with its defaults for everything that does not depend on the machine,
// such as CNI's directories.
type crio struct{ *Bed }

func (crio) socket() string { return "/run/crio/crio.sock" }

func (crio) runcRoot() string { return "/run/runc" }

const (
	crioConf = "/etc/crio/crio.conf"
	// crioRuntime starts runc.
	crioRuntime = "/etc/crio/runc"
	// crioHooks is a directory of hooks of the OCI runtime.
	crioHooks = "/etc/crio/hooks"
)

// crioConfig is crio.conf. Without clean_shutdown_file a node keeps its images after a power failure: there is no
// registry to pull them from again. Without cni_status_grace_period CRI-O calls STATUS only until it first succeeds
// after a start. Without CAP_SYS_RESOURCE runc can set few OOM scores: see e2e-tool.
const crioConfig = `[crio]
  storage_driver = "overlay"
  clean_shutdown_file = ""
[crio.api]
  stream_address = "127.0.0.1"
[crio.image]
  pause_image = "` + TestImage + `"
  pause_command = ""
[crio.network]
  cni_status_grace_period = "1s"
[crio.runtime]
  cgroup_manager = "cgroupfs"
  conmon_cgroup = "pod"
  pinns_path = %q
  hooks_dir = ["` + crioHooks + `"]
  default_runtime = "runc"
  [crio.runtime.runtimes.runc]
    runtime_path = "` + crioRuntime + `"
    runtime_root = "/run/runc"
`

// files are the configuration of a node. The chart's default is an image without a registry: CRI-O looks for it only in
// the registries listed here.
func (b crio) files() map[string]string {
	return map[string]string{
		crioConf:    fmt.Sprintf(crioConfig, b.program("pinns")),
		crioRuntime: "#!/bin/sh\nexec " + Tool + ` runc "$@"` + "\n",
		crioHooks + "/boot-id.json": `{"version": "1.0.0", "hook": {"path": "` + Tool + `", "args": ["` + toolName + `", "boot-id"]},
			"when": {"always": true}, "stages": ["createContainer"]}`,
		"/etc/containers/policy.json":     `{"default": [{"type": "insecureAcceptAnything"}]}`,
		"/etc/containers/registries.conf": `unqualified-search-registries = ["localhost"]`,
	}
}

// program is the path of one of the programs of the module test/crio.
func (b crio) program(name string) string { return filepath.Join(b.spec.RuntimeDir, name) }

// start starts CRI-O and waits until it serves.
func (b crio) start(ctx context.Context, node string) error {
	files := b.files()
	for _, file := range slices.Sorted(maps.Keys(files)) {
		path := b.Host(node).Private(file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(files[file]), 0o755); err != nil {
			return err
		}
	}
	if err := b.daemon(node, Runtime).Start(b.program("crio")); err != nil {
		return err
	}
	return b.awaitServing(ctx, node, Runtime, b.program("crio"), "status", "info")
}

// load is the command that imports an archive on its standard input.
func (b crio) load(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, b.program("load")) }
