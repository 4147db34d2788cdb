package host

import (
	"os/exec"
	"strings"
)

// Output is what a program writes to both streams; of ip that succeeds, to stdout only: on stderr it complains about
// namespaces of others that end meanwhile ("Peer netns reference is invalid").
type Output struct{ all, complaints strings.Builder }

// Collect has cmd, which is not started yet and runs program, write to an Output. That is complete when Wait has
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
