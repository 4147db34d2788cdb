// Package chaos provides the seeds and duration of tests with random schedules: a short time in every run of the suite,
// and the time in FAIRLEAD_TEST_CHAOS in "make soak".
package chaos

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// stored is the file, in a package's directory, of the seeds with which its tests have failed before.
const stored = "testdata/seeds"

// Time is the duration of a test: share, or the environment variable FAIRLEAD_TEST_CHAOS, such as 10m.
func Time(t testing.TB, share time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv("FAIRLEAD_TEST_CHAOS")
	if text == "" {
		return share
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("FAIRLEAD_TEST_CHAOS: %v", err)
	}
	return d
}

// Seeds are the first seeds of a test: the one in the environment variable SEED, else those with which it has failed
// before. Lines of testdata/seeds are "TEST SEED, what it found".
func Seeds(t testing.TB) []uint64 {
	t.Helper()
	if text := os.Getenv("SEED"); text != "" {
		return []uint64{parse(t, text)}
	}
	text, err := os.ReadFile(stored)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var seeds []uint64
	for line := range strings.Lines(string(text)) {
		test, rest, _ := strings.Cut(line, " ")
		if seed, _, _ := strings.Cut(rest, ","); test == t.Name() {
			seeds = append(seeds, parse(t, seed))
		}
	}
	return seeds
}

func parse(t testing.TB, text string) uint64 {
	t.Helper()
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("the seed of %s: %v", t.Name(), err)
	}
	return seed
}

// OneSeed reports whether a schedule is repeated by its seed, and nothing else is run.
func OneSeed() bool { return os.Getenv("SEED") != "" }

// Start is where the random seeds of a run begin: the current time.
func Start() uint64 { return uint64(time.Now().UnixNano()) }
