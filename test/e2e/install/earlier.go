package install

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fairlead-cni/fairlead/test/onetime"
)

// Earlier is an earlier version in the form of a release: the directory of its chart, and the archive of its image.
type Earlier struct{ Chart, Image, Tag string }

// GetEarlier builds a commit of this repository, by its own Makefile, once per machine. It takes minutes.
func GetEarlier(ctx context.Context, commit string) (Earlier, error) {
	chart, err := Chart()
	if err != nil {
		return Earlier{}, err
	}
	repository := filepath.Join(chart, "../../..")
	hash, err := exec.CommandContext(ctx, "git", "-C", repository, "rev-parse", "--verify", commit+"^{commit}").Output()
	if err != nil {
		return Earlier{}, fmt.Errorf("looking up the commit %s, which a shallow clone may not have: %w", commit, err)
	}
	tag := strings.TrimSpace(string(hash))[:12]
	dir, err := onetime.Get(ctx, "earlier", hash, os.Stderr, func(ctx context.Context, dir string, progress io.Writer) error {
		return buildEarlier(ctx, repository, tag, dir, progress)
	})
	return Earlier{Chart: filepath.Join(dir, "fairlead"), Image: filepath.Join(dir, "fairlead.tar"), Tag: tag}, err
}

func buildEarlier(ctx context.Context, repository, tag, dir string, progress io.Writer) error {
	source, err := os.MkdirTemp("", "fairlead-earlier")
	if err != nil {
		return err
	}
	defer os.RemoveAll(source)
	// The inputs of its image have their own cache: in the shared one each version keeps only what it uses itself.
	build := exec.CommandContext(ctx, "bash", "-ec", `set -o pipefail
git -C "$1" archive "$2" | tar -x -C "$3"
export GOCACHE=$(go env GOCACHE) XDG_CACHE_HOME="$3/cache"
make -C "$3" image VERSION="$2" IMAGE=fairlead/fairlead:"$2"
cp -r "$3/build/charts/fairlead" "$3/out/image/fairlead.tar" "$4/"`, "earlier", repository, tag, source, dir)
	build.Stdout, build.Stderr = progress, progress
	return build.Run()
}
