// Package onetime keeps build results that take minutes and rarely change, such as the kernel that tests run in, so
// that each is built once per machine.
//
// A build is in ${XDG_CACHE_HOME:-~/.cache}/fairlead/NAME-HASH, HASH being that of all inputs of the build. A directory
// of that name is complete: it is built in NAME-HASH.partial…, and renamed when all of it is on the disk. A builder
// holds a lock on NAME.lock, so a partial directory that exists while the lock is held was left by a killed build.
package onetime

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"
)

// Build builds into dir, which is empty, and leaves no other files there. It reports its progress to progress.
type Build func(ctx context.Context, dir string, progress io.Writer) error

// unused is how long a build with another hash is kept after its last use: two checkouts that differ must not build
// alternately.
const unused = 7 * 24 * time.Hour

// Get returns the directory of the result of build for key, the content that the build depends on, and builds it if it
// does not exist. Of several processes one builds and the others wait. Builds of this name that were not used for a
// week are removed. The lines in progress begin with name.
func Get(ctx context.Context, name string, key []byte, progress io.Writer, build Build) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache for %s: %w", name, err)
	}
	c := cache{dir: filepath.Join(dir, "fairlead"), reportEvery: 30 * time.Second}
	return c.get(ctx, name, key, progress, build)
}

// cache is a directory of builds.
type cache struct {
	dir         string
	reportEvery time.Duration // interval of messages during a build or a wait
}

func (c cache) get(ctx context.Context, name string, key []byte, progress io.Writer, build Build) (string, error) {
	sum := sha256.Sum256(key)
	whole := filepath.Join(c.dir, name+"-"+hex.EncodeToString(sum[:8]))
	if inUse(whole) {
		return whole, nil
	}
	out := &progressLog{w: progress, name: name}
	unlock, err := c.lock(ctx, name, out)
	if err != nil {
		return "", err
	}
	defer unlock()
	if inUse(whole) {
		return whole, nil // built while this process waited
	}
	if err := c.clean(name); err != nil {
		return "", fmt.Errorf("removing old builds of %s: %w", name, err)
	}
	if err := c.build(ctx, whole, out, build); err != nil {
		return "", fmt.Errorf("building %s: %w", name, err)
	}
	return whole, nil
}

// build fills a partial directory and renames it to whole.
func (c cache) build(ctx context.Context, whole string, out *progressLog, build Build) error {
	partial, err := os.MkdirTemp(c.dir, filepath.Base(whole)+".partial")
	if err != nil {
		return err
	}
	defer os.RemoveAll(partial)
	// MkdirTemp creates it for its owner only.
	if err := os.Chmod(partial, 0o755); err != nil {
		return err
	}
	out.line("not in the cache: building it once, in %s", whole)
	start := time.Now()
	stop := out.every(c.reportEvery, "building")
	err = build(ctx, partial, out)
	stop()
	if err != nil {
		return err
	}
	if err := flush(partial); err != nil {
		return err
	}
	if err := os.Rename(partial, whole); err != nil {
		return err
	}
	if err := sync1(c.dir); err != nil {
		return err
	}
	out.line("built in %s", time.Since(start).Round(time.Second))
	return nil
}

// inUse reports whether a build exists, and marks it as used now.
func inUse(dir string) bool {
	now := time.Now()
	return os.Chtimes(dir, now, now) == nil
}

// clean removes the leftovers of killed builds of name, and unused builds. The caller holds the lock.
func (c cache) clean(name string) error {
	ours := regexp.MustCompile("^" + regexp.QuoteMeta(name) + `-[0-9a-f]{16}(\.partial[0-9]+)?$`)
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		match := ours.FindStringSubmatch(entry.Name())
		info, err := entry.Info()
		if match == nil || err != nil {
			continue
		}
		if match[1] == "" && time.Since(info.ModTime()) < unused {
			continue
		}
		if err := os.RemoveAll(filepath.Join(c.dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// flush syncs all files under dir to the disk.
func flush(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !(entry.IsDir() || entry.Type().IsRegular()) {
			return err
		}
		return sync1(path)
	})
}

// sync1 is fsync(2) of one file or directory.
func sync1(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// progressLog writes lines that begin with a name, from several goroutines.
type progressLog struct {
	mu   sync.Mutex
	w    io.Writer
	name string
}

// Write passes a build's own output on.
func (t *progressLog) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.w.Write(p)
}

func (t *progressLog) line(format string, args ...any) {
	fmt.Fprintf(t, "%s: %s\n", t.name, fmt.Sprintf(format, args...))
}

// every reports repeatedly that doing is in progress, until stop is called.
func (t *progressLog) every(interval time.Duration, doing string) (stop func()) {
	start, ticker, done := time.Now(), time.NewTicker(interval), make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				t.line("%s for %s", doing, time.Since(start).Round(time.Second))
			}
		}
	})
	return func() { close(done); ended.Wait() }
}
