// Package labtest builds the programs of labs, once for all tests of a package.
package labtest

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

const module = "github.com/fairlead-cni/fairlead"

// built is the environment variable that names a directory with the programs, so that they need not be built: in
// User-Mode Linux a build takes minutes.
const built = "FAIRLEAD_TEST_BINDIR"

// intervals are those of the agents in labs, so that no test waits for periodic work of the product every 10 or 20
// seconds. The resync costs most, since it starts ten programs: an agent uses 1 % of a processor, not 0.2 %.
const intervals = "agent.resync=2s,agent.reconcile=2s,agent.suspectGrace=2s,agent.doubtfulAllocations=2s," +
	"agent.probe=2s,agent.probeAge=4s,agent.uplink=2s,agent.policies=1s,agent.advice=2s,agent.reach=200ms," +
	"inputs.retryMost=1s,inputs.save=500ms,inputs.otherPoliciesFirst=1s"

// guestIntervals are the short intervals that cost almost nothing: the single slow CPU of User-Mode Linux cannot afford
// the others.
const guestIntervals = "agent.suspectGrace=3s,agent.uplink=3s,agent.policies=1s,agent.advice=3s,agent.reach=500ms," +
	"inputs.retryMost=1s,inputs.otherPoliciesFirst=1s"

// Tests are all tests of a package: testing.M, or a wrapper that creates a lab around it.
type Tests interface{ Run() (code int) }

// Main builds agent, CNI plugin and lab into a directory that it writes to binDir, runs the tests and exits. Without
// root, or if -skip excludes the tests that need it, it builds nothing.
//
// Agents get short intervals, unless the environment sets intervals; lab.Options.ProductIntervals is for tests that
// need the product's own.
func Main(m Tests, binDir *string) {
	os.Exit(run(m, binDir))
}

// skipped reports whether -skip excludes the tests that need root.
func skipped() bool {
	flag.Parse()
	skip := flag.Lookup("test.skip").Value.String()
	excluded, err := regexp.MatchString(skip, "TestRoot")
	return skip != "" && excluded && err == nil
}

func run(m Tests, binDir *string) int {
	if os.Geteuid() != 0 || skipped() {
		return m.Run()
	}
	if _, set := os.LookupEnv(api.IntervalsVariable); !set {
		short := intervals
		if os.Getenv("FAIRLEAD_TEST_DATAPATH") == string(ovstest.System) {
			short = guestIntervals
		}
		if err := os.Setenv(api.IntervalsVariable, short); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
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
