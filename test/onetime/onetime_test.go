package onetime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// childDir is the environment variable that makes the test binary a builder, in the cache that it names.
const childDir = "FAIRLEAD_ONETIME_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if err := child(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child builds "thing", adds a line to the file "builds" beside the cache, and
// waits for the file "go" there before it is done.
func child(dir string) error {
	beside := filepath.Dir(dir)
	c := cache{dir: dir, reportEvery: time.Second}
	got, err := c.get(context.Background(), "thing", []byte("key"), io.Discard,
		func(_ context.Context, dir string, _ io.Writer) error {
			f, err := os.OpenFile(filepath.Join(beside, "builds"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
			if err != nil {
				return err
			}
			fmt.Fprintln(f, os.Getpid())
			f.Close()
			if err := os.WriteFile(filepath.Join(dir, "half"), nil, 0o644); err != nil {
				return err
			}
			for !exists(filepath.Join(beside, "go")) {
				time.Sleep(10 * time.Millisecond)
			}
			return os.WriteFile(filepath.Join(dir, "whole"), nil, 0o644)
		})
	fmt.Println(got)
	return err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func start(t *testing.T, dir string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd, out := exec.Command("/proc/self/exe"), &bytes.Buffer{}
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, out
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after 30 s: no %s", what)
		}
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

func ok(_ context.Context, dir string, _ io.Writer) error {
	return os.WriteFile(filepath.Join(dir, "whole"), nil, 0o644)
}

func builders(beside string) int {
	builds, _ := os.ReadFile(filepath.Join(beside, "builds"))
	return strings.Count(string(builds), "\n")
}

func TestTwoProcessesBuildOnce(t *testing.T) {
	beside := t.TempDir()
	dir := filepath.Join(beside, "cache")
	one, oneOut := start(t, dir)
	eventually(t, "build", func() bool { return builders(beside) == 1 })
	two, twoOut := start(t, dir)
	// Give the second process time to start a build, so that a missing lock is detected.
	time.Sleep(500 * time.Millisecond)
	touch(t, filepath.Join(beside, "go"))
	if err := errors.Join(one.Wait(), two.Wait()); err != nil {
		t.Fatal(err)
	}
	if n := builders(beside); n != 1 {
		t.Errorf("%d builds, want 1", n)
	}
	if oneOut.String() != twoOut.String() || !exists(filepath.Join(strings.TrimSpace(oneOut.String()), "whole")) {
		t.Errorf("one got %q, two got %q: want the same whole thing", oneOut, twoOut)
	}
}

func TestKilledBuildIsNotTakenForWhole(t *testing.T) {
	beside := t.TempDir()
	c := cache{dir: filepath.Join(beside, "cache"), reportEvery: time.Second}
	killed, _ := start(t, c.dir)
	half := filepath.Join(c.dir, "thing-*", "half")
	eventually(t, "half a build", func() bool { found, _ := filepath.Glob(half); return len(found) == 1 })
	_ = killed.Process.Kill()
	_ = killed.Wait()
	got, err := c.get(t.Context(), "thing", []byte("key"), io.Discard, ok)
	if err != nil || !exists(filepath.Join(got, "whole")) {
		t.Errorf("got %q, %v: want a whole thing", got, err)
	}
	if found, _ := filepath.Glob(half); len(found) != 0 {
		t.Errorf("left over from the killed build: %v", found)
	}
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	c := cache{dir: t.TempDir(), reportEvery: time.Second}
	broken := errors.New("no compiler")
	_, err := c.get(t.Context(), "thing", nil, io.Discard, func(_ context.Context, dir string, _ io.Writer) error {
		touch(t, filepath.Join(dir, "half"))
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
	if found, _ := filepath.Glob(filepath.Join(c.dir, "thing-*")); len(found) != 0 {
		t.Errorf("left over from the failed build: %v", found)
	}
	if _, err := c.get(t.Context(), "thing", nil, io.Discard, ok); err != nil {
		t.Errorf("the next build: %v", err)
	}
}

func TestOtherKeysAreRemovedWhenUnused(t *testing.T) {
	c := cache{dir: t.TempDir(), reportEvery: time.Second}
	get := func(name, key string) string {
		t.Helper()
		dir, err := c.get(t.Context(), name, []byte(key), io.Discard, ok)
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	old, recent, other := get("thing", "1"), get("thing", "2"), get("thing-else", "1")
	long := time.Now().Add(-unused - time.Hour)
	for _, dir := range []string{old, other} {
		if err := os.Chtimes(dir, long, long); err != nil {
			t.Fatal(err)
		}
	}
	get("thing", "3")
	if exists(old) {
		t.Errorf("%s: unused for more than a week, and still there", old)
	}
	if !exists(recent) || !exists(other) {
		t.Errorf("removed: a thing in use, or one of another name")
	}
}

// told collects the output, and calls whenAll when it contains all of the texts.
type told struct {
	bytes.Buffer
	texts   []string
	whenAll func()
}

func (o *told) Write(p []byte) (int, error) {
	n, err := o.Buffer.Write(p)
	if !slices.ContainsFunc(o.texts, func(text string) bool { return !strings.Contains(o.String(), text) }) {
		o.whenAll()
	}
	return n, err
}

func TestProgressAndTheWaitThatEnds(t *testing.T) {
	c := cache{dir: t.TempDir(), reportEvery: 10 * time.Millisecond}
	waiting, giveUp := context.WithTimeout(t.Context(), time.Minute)
	defer giveUp()
	out := &told{texts: []string{"thing: building for ", "thing: another process builds it: waiting for "}, whenAll: giveUp}
	_, err := c.get(t.Context(), "thing", nil, out, func(_ context.Context, _ string, progress io.Writer) error {
		fmt.Fprintln(progress, "some two minutes")
		// A second get waits for this build; it is cancelled when both have reported their progress.
		if _, err := c.get(waiting, "thing", nil, progress, ok); !errors.Is(err, context.Canceled) {
			t.Errorf("waiting for the lock: %v, want that of its context", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"thing: not in the cache", "some two minutes\n", "thing: building for \\d+s\n",
		"thing: another process builds it: waiting for \\d+s\n", "thing: built in \\d+s\n",
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}
