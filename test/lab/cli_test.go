package main

import (
	"bytes"
	"strings"
	"testing"
)

// runLab runs the command in this process.
func runLab(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	cmd := root()
	var out bytes.Buffer
	cmd.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestWrongUse(t *testing.T) {
	for args, want := range map[string]string{
		"fly":                             `unknown command "fly"`,
		"up node1":                        `unknown command "node1"`,
		"up --node 3":                     "unknown flag: --node",
		"up --nodes 0":                    "1 to 100 nodes",
		"up --nodes 101":                  "1 to 100 nodes",
		"up --nodes two":                  `invalid argument "two"`,
		"up --datapath kernel":            `datapath "kernel"`,
		"up --ip-family both":             `IP family "both"`,
		"up --mode bridged":               `mode "bridged" is neither routed nor bridge`,
		"up --mode bridge --subnets 2":    "--subnets 2 is for mode routed",
		"up --cluster k3s":                `cluster "k3s" is neither directory nor kube`,
		"up --kube-proxy none":            "need a cluster with Kubernetes: --cluster kube",
		"up --cluster kube --set a=b":     `"a=b" is not PART.FLAG=VALUE with a PART of [etcd apiserver kcm]`,
		"up --cluster kube --set kcm.v":   `"v" is not FLAG=VALUE`,
		"up --cluster kube --route-pods":  "not known beforehand",
		"kubectl get pods":                "no lab is up in /does/not/exist",
		"control-plane kcm":               "no lab is up",
		"up --config /does/not/exist":     "--config: open /does/not/exist",
		"up --name a --dir b":             "[dir name] were all set",
		"up --name ../x":                  `--name "../x"`,
		"apply":                           `required flag(s) "filename" not set`,
		"apply -f":                        "flag needs an argument",
		"apply pods.yaml":                 `unknown command "pods.yaml"`,
		"node node1 ls":                   "write: lab node NODE -- CMD",
		"node node1 --":                   "write: lab node NODE -- CMD",
		"node -- ls":                      "write: lab node NODE -- CMD",
		"pod default/a default/b -- ls":   "write: lab pod NAMESPACE/NAME -- CMD",
		"agent node1":                     "accepts 2 arg(s)",
		"agent node1 restart":             "no lab is up",
		"crash node1":                     `required flag(s) "at" not set`,
		"crash node1 --at port":           "no lab is up",
		"reboot":                          "accepts 1 arg(s)",
		"reboot node1":                    "no lab is up",
		"ovs node1 kill vswitchd ovsdb":   "accepts between 2 and 3 arg(s)",
		"cni node1":                       "requires at least 2 arg(s)",
		"get services":                    `invalid argument "services"`,
		"status -o yaml":                  "-o yaml: there are table and json",
		"runner restart now":              "accepts 1 arg(s)",
		"node node1 -- ls":                "no lab is up in /does/not/exist (lab up creates one)",
		"status":                          "no lab is up",
		"apply -f -":                      "no lab is up",
		"down now":                        `unknown command "now"`,
		"up --bin-dir /does/not/exist -h": "", // help needs no programs
	} {
		all := strings.Fields(args)
		if !strings.Contains(args, "--name") {
			all = append([]string{"--dir", "/does/not/exist"}, all...)
		}
		_, err := runLab(t, "", all...)
		if want == "" && err == nil {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("lab %s: got %v, want an error with %q", args, err, want)
		}
	}
}

// Every command has a description and prints its usage. Only hidden commands are missing from the list.
func TestHelp(t *testing.T) {
	out, err := runLab(t, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range root().Commands() {
		if cmd.Short == "" {
			t.Errorf("%s has no help", cmd.Name())
		}
		if cmd.Hidden == strings.Contains(out, "\n  "+cmd.Name()+" ") && cmd.Name() != "completion" {
			t.Errorf("hidden %v, but the list of commands is\n%s", cmd.Hidden, out)
		}
		help, err := runLab(t, "", cmd.Name(), "--help")
		if err != nil || !strings.Contains(help, "Usage:\n  lab "+cmd.Name()) {
			t.Errorf("lab %s --help: %v\n%s", cmd.Name(), err, help)
		}
		for line := range strings.Lines(help) {
			if len(line) > 121 {
				t.Errorf("a line of the help of %s is %d long: %s", cmd.Name(), len(line), line)
			}
		}
	}
}
