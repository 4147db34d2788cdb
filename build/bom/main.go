// Command bom lists the contents of an image: its components (SBOM), the licences of its Go modules, and the size of
// its layers. The image's build calls it.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

const usage = `usage:
  bom sbom -root DIR -version VERSION -o FILE PROGRAMS...
        CycloneDX: Go modules of the programs (files, or directories of them) and Debian's packages below DIR, unless
        DIR is empty
  bom licences -o FILE PROGRAMS...
        the licence texts of the Go modules of the programs; needs go, and runs in their module
  bom layers [-extract DIR] ARCHIVE
        size of each layer of a docker archive; the SBOM in it is written to DIR`

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bom:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("a command is missing\n%s", usage)
	}
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	f.Usage = func() { fmt.Fprintln(f.Output(), usage) }
	out := f.String("o", "", "")
	root := f.String("root", "/", "")
	version := f.String("version", "", "")
	extract := f.String("extract", "", "")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	switch {
	case args[0] == "sbom" && f.NArg() > 0 && *out != "":
		return writeSBOM(*out, *root, *version, f.Args())
	case args[0] == "licences" && f.NArg() > 0 && *out != "":
		return writeLicences(*out, f.Args())
	case args[0] == "layers" && f.NArg() == 1:
		return printLayers(stdout, f.Arg(0), *extract)
	}
	return fmt.Errorf("invalid arguments %q\n%s", args, usage)
}
