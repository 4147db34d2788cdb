// Command table prints the results of benchmarks in out/bench/results.json (package report) as one table. Beside that
// file it writes the table as a page, results.md, and draws ratios.svg and one plot for each curve. Once it has
// measured everything, the make target bench copies the page to docs/benchmarks.md.
package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/fairlead-cni/fairlead/test/bench/report"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	dir, err := report.Dir()
	if err != nil {
		return err
	}
	all, err := report.Read(dir)
	if err != nil {
		return err
	}
	if len(all.Rows)+len(all.Curves) == 0 {
		return fmt.Errorf("no results in %s: run make bench", dir)
	}
	drawings := map[string]string{"ratios": all.Ratios()}
	notAName := regexp.MustCompile(`[^a-z0-9]+`)
	for _, c := range all.Curves {
		drawings[strings.Trim(notAName.ReplaceAllString(strings.ToLower(c.Name), "-"), "-")] = c.SVG()
	}
	for name, text := range drawings {
		if err := os.WriteFile(filepath.Join(dir, name+".svg"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "results.md"), []byte(page(all)), 0o644); err != nil {
		return err
	}
	fmt.Print(all.Table())
	fmt.Printf("\n%s has all samples, and plots are beside it.\n", filepath.Join(dir, "results.json"))
	return nil
}

// page is docs/benchmarks.md.
func page(all report.All) string {
	return "# Results of the benchmarks\n\n`make bench` writes this page at the end of a run without errors. " +
		"[Performance](performance.md) says what was\nmeasured and how, why targets are missed, and has the results of other runs.\n\n" +
		machine() + all.Markdown()
}

// machine describes the machine of the benchmarks.
func machine() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	_, model, _ := strings.Cut(string(text), "model name\t: ")
	model, _, _ = strings.Cut(model, "\n")
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	version, _, _ := strings.Cut(strings.TrimSpace(string(kernel)), "-")
	return fmt.Sprintf("%d processors (%s), Linux %s.\n", runtime.NumCPU(), cmp.Or(model, "unknown"), version)
}
