// Command table prints the results of benchmarks in out/bench/results.json (package report) as one table, and draws
// ratios.svg and one plot for each curve beside that file.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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
		return fmt.Errorf("no results in %s: make bench makes some", dir)
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
	fmt.Print(all.Table())
	fmt.Printf("\n%s has all samples, and plots are beside it.\n", filepath.Join(dir, "results.json"))
	return nil
}
