package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// runcCommand is the OCI runtime of CRI-O on the nodes of a bed: runc, without the settings that it cannot apply on
// this machine. containerd omits these by itself; CRI-O has no option for it.
func runcCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "runc ARG...",
		Short:              "Run runc without unsupported settings; started by the container runtime",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE:               func(_ *cobra.Command, args []string) error { return runc(args) },
	}
}

func runc(args []string) error {
	program, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	can, err := settable()
	if err != nil {
		return err
	}
	if bundle := after(args, "--bundle"); bundle != "" { // runc create
		if err := edit(filepath.Join(bundle, "config.json"), can.container); err != nil {
			return fmt.Errorf("the configuration of a container: %w", err)
		}
	}
	if process := after(args, "--process"); process != "" { // runc exec
		if err := edit(process, can.process); err != nil {
			return fmt.Errorf("the configuration of a process: %w", err)
		}
	}
	return unix.Exec(program, append([]string{program}, args...), os.Environ())
}

// after returns the argument that follows flag.
func after(args []string, flag string) string {
	if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// means are the settings that this process can apply to containers.
type means struct {
	lowestOOMScore     int
	resources, hugetlb bool // CAP_SYS_RESOURCE; limits of huge pages
}

// settable returns the settings that this process can apply. Root may lack CAP_SYS_RESOURCE, for example in a
// container: then no process can have it, or a lower OOM score than its parent. With cgroups of version 1, hugetlb may
// be mounted nowhere, or bound to version 2.
func settable() (means, error) {
	can := means{lowestOOMScore: -1000, resources: true}
	for _, file := range []string{"/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/hugetlb"} {
		if _, err := os.Stat(file); err == nil {
			can.hugetlb = true
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil || sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0 {
		return can, err
	}
	can.resources = false
	text, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return can, err
	}
	can.lowestOOMScore, err = strconv.Atoi(strings.TrimSpace(string(text)))
	return can, err
}

// container reduces a container's configuration to what can be set.
func (m means) container(spec object) error {
	if err := within(spec, "process", m.process); err != nil || m.hugetlb {
		return err
	}
	return within(spec, "linux", func(linux object) error {
		return within(linux, "resources", func(resources object) error {
			delete(resources, "hugepageLimits")
			return nil
		})
	})
}

// process reduces a process's configuration to what can be set.
func (m means) process(process object) error {
	var score int
	if err := json.Unmarshal(process["oomScoreAdj"], &score); err == nil && score < m.lowestOOMScore {
		process["oomScoreAdj"] = fmt.Append(nil, m.lowestOOMScore)
	}
	if m.resources {
		return nil
	}
	return within(process, "capabilities", withoutResources)
}

// withoutResources removes CAP_SYS_RESOURCE from all sets of capabilities.
func withoutResources(sets object) error {
	for set, text := range sets {
		var names []string
		if err := json.Unmarshal(text, &names); err != nil {
			return fmt.Errorf("%s: %w", set, err)
		}
		names = slices.DeleteFunc(names, func(name string) bool { return name == "CAP_SYS_RESOURCE" })
		var err error
		if sets[set], err = json.Marshal(names); err != nil {
			return err
		}
	}
	return nil
}

// object keeps unchanged members as they are, even numbers that float64 cannot represent.
type object = map[string]json.RawMessage

// edit changes the JSON object in a file.
func edit(file string, change func(object) error) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var o object
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	if err := change(o); err != nil {
		return err
	}
	if text, err = json.Marshal(o); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// within changes the object that is a member of another one, if it is present.
func within(o object, key string, change func(object) error) error {
	if o[key] == nil {
		return nil
	}
	var inner object
	if err := json.Unmarshal(o[key], &inner); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	if err := change(inner); err != nil {
		return err
	}
	text, err := json.Marshal(inner)
	o[key] = text
	return err
}
