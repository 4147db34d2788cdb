package conflist

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/version"
)

// versionWait bounds a plugin's VERSION, which takes milliseconds.
const versionWait = 5 * time.Second

var errSlow = fmt.Errorf("it did not answer VERSION within %s", versionWait)

// versionsOf returns the versions of the CNI spec that the plugin reports.
func versionsOf(ctx context.Context, name string, binDirs []string) ([]string, error) {
	path, err := find(name, binDirs)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, versionWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = []string{"CNI_COMMAND=VERSION", "CNI_PATH=" + filepath.Dir(path)}
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.1.0"}`)
	cmd.WaitDelay = time.Second // for a child of the plugin that keeps stdout open
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w", path, errSlow)
	}
	if err != nil {
		return nil, fmt.Errorf("%s did not answer VERSION: %w %s", path, err, strings.TrimSpace(stderr.String()))
	}
	info, err := (&version.PluginDecoder{}).Decode(out)
	if err != nil {
		return nil, fmt.Errorf("%s gave an invalid answer to VERSION: %w", path, err)
	}
	return info.SupportedVersions(), nil
}

// find returns the path that the runtime would execute.
func find(name string, binDirs []string) (string, error) {
	for _, dir := range binDirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", errors.New("it is not in " + strings.Join(binDirs, ", "))
}
