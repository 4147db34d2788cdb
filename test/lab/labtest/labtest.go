// Package labtest builds what labs run, once for all tests of a package.
package labtest

import (
	"fmt"
	"os"
	"os/exec"
)

const module = "github.com/fairlead-cni/fairlead"

// built in the environment names a directory in which the programs are, so that
// they need not be built: in User-Mode Linux that takes minutes.
const built = "FAIRLEAD_TEST_BINDIR"

// Tests are all tests of a package: testing.M, or what makes a lab around it.
type Tests interface{ Run() (code int) }

// Main builds agent, CNI plugin and lab into a directory that it writes to
// binDir, runs the tests and ends the process. Without root it builds nothing:
// the tests that need a lab are skipped then.
func Main(m Tests, binDir *string) {
	os.Exit(run(m, binDir))
}

func run(m Tests, binDir *string) int {
	if os.Geteuid() != 0 {
		return m.Run()
	}
	if *binDir = os.Getenv(built); *binDir != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "labtest-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-o", dir+"/", module+"/cmd/fairlead-agent", module+"/cmd/fairlead", module+"/cmd/fairleadctl",
		module+"/test/lab")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building agent, plugin and lab: %v\n%s", err, out)
		return 1
	}
	*binDir = dir
	return m.Run()
}
