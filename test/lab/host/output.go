package host

import (
	"os/exec"
	"strings"
)

// Output is a program's stdout and stderr. For an ip command that succeeds it is stdout only: ip complains on stderr
// about other users' namespaces that disappear meanwhile ("Peer netns reference is invalid").
type Output struct{ all, complaints strings.Builder }

// Collect connects cmd, which runs program and is not started yet, to an Output. The Output is complete when Wait has
// returned.
func Collect(cmd *exec.Cmd, program string) *Output {
	o := &Output{}
	cmd.Stdout, cmd.Stderr = &o.all, &o.all
	if program == "ip" {
		cmd.Stderr = &o.complaints
	}
	return o
}

// Text is the output of a program that ended with err.
func (o *Output) Text(err error) string {
	if err != nil {
		return o.all.String() + o.complaints.String()
	}
	return o.all.String()
}
