// Command fairlead is Fairlead's CNI plugin. It is installed under this name
// and under the name antrea.
package main

import (
	"os"

	"github.com/fairlead-cni/fairlead/cniserver/shim"
)

func main() { os.Exit(shim.Main()) }
