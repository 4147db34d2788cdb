// Package shim is the CNI plugin that the container runtime executes: it forwards the runtime's call to the agent's
// socket and prints the response. It decides nothing, with one exception: if no agent responds, its error makes the
// runtime retry, and has the reason that the agent left.
//
// It runs once per call, so it must start fast: it imports skel, what skel imports, and package wire. Its name on disk
// does not matter; it is installed as fairlead and as antrea.
package shim

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/fairlead-cni/fairlead/cniserver/wire"
)

const about = `Fairlead CNI plugin. A container runtime calls it, with CNI_COMMAND and other variables in its environment
(https://www.cni.dev/docs/spec/) and the network configuration on stdin; it forwards the call to this node's fairlead-agent.
To see whether the agent is ready:
    echo '{"cniVersion": "1.1.0", "name": "fairlead", "type": "fairlead"}' | CNI_COMMAND=STATUS CNI_PATH=/ fairlead
It prints nothing and exits with 0 when it is.`

// Main processes the call in the environment and on stdin, and returns the exit code. The result, or the error, goes to
// stdout as the CNI spec requires.
func Main() int { return mainWithin(wire.ClientDeadline) }

// mainWithin is Main for a call that may take as long as limit.
func mainWithin(limit time.Duration) int {
	// skel compares the pod's network namespace with its own only after the plugin has done its work. The server
	// rejects such an ADD before, and a DEL after it must succeed.
	os.Setenv("CNI_NETNS_OVERRIDE", "true")
	deadline := time.Now().Add(limit)

	var result []byte
	done := make(chan *types.Error, 1)
	go func() {
		done <- skel.PluginMainFuncsWithError(verbs(deadline, &result), version.PluginSupports(wire.Versions()...), usage())
	}()
	var failed *types.Error
	select {
	case failed = <-done:
	case <-time.After(limit + time.Second): // past the deadline of the socket
		failed = types.NewError(types.ErrIOFailure, fmt.Sprintf(
			"the network configuration on stdin did not end within %s", limit), "")
	}
	if failed != nil {
		failed.Print()
		return 1
	}
	if _, err := os.Stdout.Write(result); err != nil {
		return 1
	}
	return 0
}

// usage is what skel prints if CNI_COMMAND is missing, instead of an error: only users call it without any of the
// variables.
func usage() string {
	if slices.ContainsFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "CNI_") && !strings.HasPrefix(v, "CNI_NETNS_OVERRIDE=")
	}) {
		return ""
	}
	return about
}

func verbs(deadline time.Time, result *[]byte) skel.CNIFuncs {
	call := func(verb string) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) (err error) {
			*result, err = send(deadline, verb, args)
			return err
		}
	}
	return skel.CNIFuncs{Add: call("ADD"), Del: call("DEL"), Check: call("CHECK"), GC: call("GC"), Status: call("STATUS")}
}

// send sends the call to the agent and returns its result.
func send(deadline time.Time, verb string, args *skel.CmdArgs) ([]byte, error) {
	socket, err := socketOf(args.StdinData)
	if err != nil {
		return nil, err
	}
	request, err := json.Marshal(wire.Request{Command: verb, ContainerID: args.ContainerID, Netns: args.Netns,
		IfName: args.IfName, Args: args.Args, Path: args.Path, Config: args.StdinData})
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network configuration: "+err.Error(), "")
	}
	if len(request) > wire.MaxRequest {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(
			"the network configuration is too long: the request has %d bytes, the limit is %d", len(request), wire.MaxRequest), "")
	}
	conn, err := (&net.Dialer{Deadline: deadline}).Dial("unix", socket)
	if err != nil {
		return nil, noAgent(verb, socket, err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(deadline)
	response, err := exchange(conn, request)
	if err != nil {
		return nil, noAgent(verb, socket, err)
	}
	if response.Error != nil {
		return nil, response.Error
	}
	return response.Result, nil
}

func socketOf(config []byte) (string, error) {
	var conf map[string]json.RawMessage
	if err := json.Unmarshal(config, &conf); err != nil {
		return "", types.NewError(types.ErrDecodingFailure, "the network configuration: "+err.Error(), "")
	}
	socket := wire.DefaultSocket
	if raw, ok := conf[wire.SocketKey]; ok {
		if err := json.Unmarshal(raw, &socket); err != nil || socket == "" {
			return "", types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(
				"network configuration, key %q: %s is not the path of a socket", wire.SocketKey, raw), "")
		}
	}
	return socket, nil
}

// exchange writes the request and reads the response. An agent that rejects a request may respond and close before it
// has read all of it: then the response counts, and not the failed write.
func exchange(conn net.Conn, request []byte) (wire.Response, error) {
	var response wire.Response
	_, writeErr := conn.Write(append(request, '\n'))
	line, err := bufio.NewReader(io.LimitReader(conn, wire.MaxResponse+1)).ReadBytes('\n')
	switch {
	case err == nil:
	case errors.Is(err, os.ErrDeadlineExceeded):
		return response, errors.New("timeout")
	case writeErr != nil:
		return response, fmt.Errorf("sending the call: %w", writeErr)
	default:
		return response, errors.New("the agent stopped before it answered")
	}
	if err := json.Unmarshal(line, &response); err != nil {
		return response, fmt.Errorf("the agent's answer: %w", err)
	}
	return response, nil
}

// noAgent is the error if the agent did not respond: try again later, for DEL and GC too, since success would leak the
// pod's address. The agent leaves the reason why it does not serve beside its socket.
func noAgent(verb, socket string, err error) error {
	code := types.ErrTryAgainLater
	if verb == "STATUS" {
		code = types.ErrPluginNotAvailable
	}
	text := fmt.Sprintf("the fairlead-agent of this node does not answer: %v", err)
	if reason := lastError(socket); reason != "" {
		text += ". Its last error: " + reason
	} else {
		text += ". Is it running?"
	}
	return types.NewError(code, text, "")
}

// lastError returns the agent's last message, or "".
func lastError(socket string) string {
	f, err := os.Open(wire.LastErrorPath(socket))
	if err != nil {
		return ""
	}
	defer f.Close()
	const longest = 4 << 10
	text, err := io.ReadAll(io.LimitReader(f, longest))
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(strings.TrimSpace(string(text)), "")
}
