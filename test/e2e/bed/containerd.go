package bed

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

const (
	containerdConf = "/etc/containerd/config.toml"
	// baseSpec is the base of every container's runtime configuration.
	baseSpec = "/etc/containerd/base-spec.json"
)

// containerdConfig is version 2 of config.toml, which containerd 1.6 and 2 read, without the path of the shim: by
// default a shim in PATH takes precedence over the one beside containerd. Root may lack CAP_SYS_RESOURCE, for example
// in a container: runc then cannot set a sandbox's OOM score of -998, and containerd must not request one lower than
// its own.
const containerdConfig = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + TestImage + `"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      runtime_path = %q
      base_runtime_spec = "` + baseSpec + `"
`

// containerd is the runtime of a bed's nodes, Debian's or a newer one.
type containerd struct{ *Bed }

func (containerd) socket() string { return "/run/containerd/containerd.sock" }

func (containerd) runcRoot() string { return "/run/containerd/runc/k8s.io" }

// program is the path of one of containerd's programs, or its bare name if it is in PATH.
func (b containerd) program(name string) string { return filepath.Join(b.spec.RuntimeDir, name) }

// start starts containerd and waits until it serves.
func (b containerd) start(ctx context.Context, node string) error {
	h := b.Host(node)
	shim, err := exec.LookPath(b.program("containerd-shim-runc-v2"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(h.Private(containerdConf), fmt.Appendf(nil, containerdConfig, shim), 0o644); err != nil {
		return err
	}
	if err := b.writeBaseSpec(ctx, node); err != nil {
		return fmt.Errorf("the base of all containers on %s: %w", node, err)
	}
	if err := b.daemon(node, Runtime).Start(b.program("containerd"), "--config", containerdConf); err != nil {
		return err
	}
	return b.awaitServing(ctx, node, Runtime, b.program("ctr"), "version")
}

// load is the command that imports an archive on its standard input.
func (b containerd) load(ctx context.Context) *exec.Cmd {
	return exec.CommandContext(ctx, b.program("ctr"), "-n", "k8s.io", "images", "import", "-")
}

// writeBaseSpec adds to containerd's default spec the hook that shows containers the boot ID of their node.
func (b containerd) writeBaseSpec(ctx context.Context, node string) error {
	out, err := b.NodeExec(ctx, node, b.program("ctr"), "oci", "spec")
	if err != nil {
		return err
	}
	var spec map[string]any
	if err := json.Unmarshal([]byte(out), &spec); err != nil {
		return err
	}
	spec["hooks"] = map[string]any{"createContainer": []any{
		map[string]any{"path": Tool, "args": []string{toolName, "boot-id"}}}}
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(b.Host(node).Private(baseSpec), data, 0o644)
}
