package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
)

func getCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get URL...",
		Short: "Print the responses of URLs; a status other than 200 is an error",
		Args:  cobra.MinimumNArgs(1),
	}
	timeout := timeoutFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		// A new connection for each request: a Service may choose another pod for it.
		client := &http.Client{Timeout: *timeout, Transport: &http.Transport{DisableKeepAlives: true}}
		var failed []error
		for _, url := range args {
			if err := get(cmd.OutOrStdout(), client, url); err != nil {
				failed = append(failed, err)
			}
		}
		return errors.Join(failed...)
	}
	return cmd
}

func get(out io.Writer, client *http.Client, url string) error {
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(out, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, answer.Status)
	}
	return nil
}

func askCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ask HOST:PORT TEXT",
		Short: "Send a UDP datagram and print the reply; retries every second, as a DNS client does",
		Args:  cobra.ExactArgs(2),
	}
	timeout := timeoutFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		answer, err := ask(args[0], args[1], *timeout)
		if err != nil {
			return err
		}
		fmt.Fprintln(cmd.OutOrStdout(), answer)
		return nil
	}
	return cmd
}

func ask(to, text string, timeout time.Duration) (string, error) {
	conn, err := net.Dial("udp", to)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	buf := make([]byte, 2048)
	for end := time.Now().Add(timeout); ; {
		if _, err := conn.Write([]byte(text)); err != nil {
			return "", err
		}
		if err := conn.SetReadDeadline(time.Now().Add(min(time.Second, timeout))); err != nil {
			return "", err
		}
		n, err := conn.Read(buf)
		if err == nil {
			return string(buf[:n]), nil
		}
		if time.Now().After(end) || !os.IsTimeout(err) {
			return "", fmt.Errorf("no answer from %s: %w", to, err)
		}
	}
}
