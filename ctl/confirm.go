package ctl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/internal/cli"
)

// confirm asks on the terminal, and returns nil if the answer is yes; otherwise the error says what was not done.
// without is what to do if there is no terminal.
func confirm(c *cobra.Command, without, question, notDone string) error {
	if !isTerminal(c.InOrStdin()) {
		return cli.Usage(errors.New("no terminal to ask for confirmation: " + without))
	}
	fmt.Fprintln(c.ErrOrStderr(), question+" Type yes:")
	answer, err := readLine(c.Context(), c)
	if err == nil && answer != "yes" {
		err = errors.New(notDone)
	}
	return err
}

// readLine reads one line; ctx ends the wait.
func readLine(ctx context.Context, c *cobra.Command) (string, error) {
	type line struct {
		text string
		err  error
	}
	read := make(chan line, 1)
	go func() {
		text, err := bufio.NewReader(c.InOrStdin()).ReadString('\n')
		read <- line{strings.TrimSpace(text), err}
	}()
	select {
	case <-ctx.Done():
		return "", errors.New("interrupted: nothing was done")
	case l := <-read:
		return l.text, l.err
	}
}
