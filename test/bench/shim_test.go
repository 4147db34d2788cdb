package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/bench/report"
)

// BenchmarkRootShim measures the plugin's process without the agent, CNI VERSION, beside a Go program that does nothing
// and is built in the same way.
func BenchmarkRootShim(b *testing.B) {
	dir := b.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
		b.Fatal(err)
	}
	empty, shim := filepath.Join(dir, "empty"), "../../bin/fairlead"
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", empty, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("the empty program: %v\n%s", err, out)
	}
	run := func(program string) float64 {
		cmd := exec.Command(program)
		cmd.Env = []string{"CNI_COMMAND=VERSION", "PATH=/usr/bin"}
		cmd.Stdin = strings.NewReader(`{"cniVersion": "1.0.0"}`)
		begin := time.Now()
		out, err := cmd.Output()
		took := time.Since(begin)
		if err != nil || program == shim && !strings.Contains(string(out), "supportedVersions") {
			b.Fatalf("%s: %v\n%s", program, err, out)
		}
		return float64(took.Microseconds()) / 1000
	}
	var ours, theirs []float64
	for i := range 210 {
		if i < 10 { // the first runs read the programs from the disk
			run(shim)
			run(empty)
			continue
		}
		if i%2 == 0 {
			ours, theirs = append(ours, run(shim)), append(theirs, run(empty))
		} else {
			theirs, ours = append(theirs, run(empty)), append(ours, run(shim))
		}
	}
	report.Add(b, report.Result{Group: "CNI, the plugin's process", Name: "VERSION", Unit: "ms", Ours: ours, Peer: theirs,
		Against: "an empty Go program", Difference: true, Target: report.AtMost(2)})
}
