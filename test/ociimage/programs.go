package ociimage

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
)

// Programs returns programs of this machine with the shared libraries that they need, at the same paths in the image as
// here. A name without a slash is searched for in the PATH; a link is followed, and the file in the image has the
// requested name.
func Programs(ctx context.Context, names ...string) ([]File, error) {
	var files []File
	for _, name := range names {
		found, err := exec.LookPath(name)
		if err != nil {
			return nil, err
		}
		libraries, err := libraries(ctx, found)
		if err != nil {
			return nil, err
		}
		files = append(files, File{Path: filepath.Join("/usr/bin", filepath.Base(found)), From: found})
		for _, library := range libraries {
			files = append(files, File{Path: library, From: library})
		}
	}
	return files, nil
}

// libraries returns the paths of the dynamic linker and of all shared libraries of a program, none if it is static.
// ldd(1) runs the dynamic linker itself, so the result is the same as at run time.
func libraries(ctx context.Context, program string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "ldd", program).CombinedOutput()
	if regexp.MustCompile(`not a dynamic executable|statically linked`).Match(out) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w: %s", program, err, out)
	}
	if missing := regexp.MustCompile(`(\S+) => not found`).FindSubmatch(out); missing != nil {
		return nil, fmt.Errorf("%s needs %s, which is not on this machine", program, missing[1])
	}
	var paths []string
	for _, match := range regexp.MustCompile(`(/\S+) \(0x`).FindAllSubmatch(out, -1) {
		paths = append(paths, string(match[1]))
	}
	return paths, nil
}
