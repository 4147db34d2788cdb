// Command fairleadctl examines a cluster that runs Fairlead; it is also kubectl's plugin "kubectl fairlead". The
// commands are in package ctl.
package main

import (
	"os"

	"github.com/fairlead-cni/fairlead/ctl"
	"github.com/fairlead-cni/fairlead/internal/cli"
)

// version is set by the linker.
var version = "dev"

func main() {
	name := ctl.CalledAs(os.Args[0])
	cli.Main(name, ctl.Command(name, version), cli.Code)
}
