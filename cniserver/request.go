package cniserver

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/cniserver/wire"
)

// call is one request, validated: what to call the handler with and how to respond.
type call struct {
	verb       string
	cniVersion string // of the response
	dns        types.DNS
	request    Request        // ADD, DEL, CHECK
	network    string         // GC
	valid      []AttachmentID // GC
	as         role
	ipam       ipamConf // if as is ipamPlugin, except DEL and GC
	// nothing is set for a DEL or GC of a network that is not Fairlead's: no ADD for it ever succeeds, so there is
	// nothing to undo.
	nothing bool
}

// decode parses one line from the socket.
func decode(line []byte) (wire.Request, error) {
	var r wire.Request
	if err := json.Unmarshal(line, &r); err != nil {
		return r, decodingError("the request", err)
	}
	verbs := []string{"ADD", "DEL", "CHECK", "GC", "STATUS"}
	if !slices.Contains(verbs, r.Command) {
		return r, invalidEnv("CNI_COMMAND is %q, want one of %s", r.Command, strings.Join(verbs, ", "))
	}
	return r, nil
}

func invalidEnv(format string, args ...any) error {
	return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf(format, args...), "")
}

// newCall validates r by the rules of its verb.
func newCall(r wire.Request) (*call, error) {
	conf, err := parseNetConf(r.Config)
	if err != nil {
		return nil, err
	}
	c := &call{verb: r.Command}
	if c.cniVersion, err = conf.cniVersion(r.Command); err != nil {
		return nil, err
	}
	if c.network, err = conf.name(); err != nil {
		return nil, err
	}
	c.as, err = conf.role()
	cleansUp := c.verb == "DEL" || c.verb == "GC"
	if err != nil && !cleansUp {
		return nil, err
	}
	switch {
	case c.as == ipamPlugin:
		return c, c.ipamRequest(r, conf)
	case c.as == otherPlugin:
		c.nothing = true
		return c, nil
	}
	switch c.verb {
	case "ADD":
		err = c.addRequest(r, conf)
	case "DEL":
		err = c.delRequest(r)
	case "CHECK":
		err = c.checkRequest(r, conf)
	case "GC":
		c.valid, err = conf.validAttachments()
	}
	return c, err
}

func (c *call) addRequest(r wire.Request, conf netConf) error {
	if err := c.podRequest(r); err != nil {
		return err
	}
	var prev any
	if err := conf.get("prevResult", &prev); err != nil {
		return err
	}
	if prev != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(
			"prevResult is set: in network %q another plugin runs before Fairlead. Fairlead creates the pod's interface and must be the first plugin", c.network), "")
	}
	var err error
	c.dns, err = conf.dns()
	return err
}

func (c *call) checkRequest(r wire.Request, conf netConf) error {
	if err := c.podRequest(r); err != nil {
		return err
	}
	prev, err := conf.prevResult(r.IfName)
	if err != nil {
		return err
	}
	if prev == nil {
		return errNoPrevResult()
	}
	c.request.PrevMAC, c.request.PrevAddrs = prev.mac, prev.addrs
	return nil
}

// podRequest is the common part of ADD and CHECK.
func (c *call) podRequest(r wire.Request) error {
	if err := c.delRequest(r); err != nil {
		return err
	}
	if err := checkNetns(r.Netns); err != nil {
		return err
	}
	args, err := parseArgs(r.Args)
	if err != nil {
		return err
	}
	c.request.setPod(args)
	return nil
}

func (r *Request) setPod(args podArgs) {
	r.PodNamespace, r.PodName = string(args.K8S_POD_NAMESPACE), string(args.K8S_POD_NAME)
	r.PodUID = string(args.K8S_POD_UID)
}

// delRequest validates what identifies the attachment and reads the rest as far as possible.
func (c *call) delRequest(r wire.Request) error {
	if err := utils.ValidateContainerID(r.ContainerID); err != nil {
		return invalidEnv("CNI_CONTAINERID %q: %s", r.ContainerID, err.Msg)
	}
	if err := utils.ValidateInterfaceName(r.IfName); err != nil {
		return invalidEnv("CNI_IFNAME %q: %s", r.IfName, err.Msg)
	}
	args, _ := parseArgs(r.Args)
	c.request = Request{ContainerID: r.ContainerID, IfName: r.IfName, Netns: r.Netns, Network: c.network}
	c.request.setPod(args)
	return nil
}

// checkNetns checks that path is a network namespace other than the agent's own, in which the pod's interface would
// replace the node's.
func checkNetns(path string) error {
	bad := func(text string) error {
		return types.NewError(types.ErrInvalidNetNS, fmt.Sprintf("CNI_NETNS %q: %s", path, text), "")
	}
	if !filepath.IsAbs(path) {
		return bad("not an absolute path")
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe would block
	if err != nil {
		return bad(fmt.Sprintf("%v. If it exists on the node, the agent does not see the node's directory of network namespaces: mount it with mountPropagation HostToContainer", err))
	}
	defer file.Close()
	switch kind, err := unix.IoctlRetInt(int(file.Fd()), unix.NS_GET_NSTYPE); {
	case err != nil:
		return bad("not a network namespace")
	case kind != unix.CLONE_NEWNET:
		return bad("a namespace, but not a network namespace: the container runtime must pass the pod's network namespace")
	}
	info, err := file.Stat()
	if err != nil {
		return bad(err.Error())
	}
	own, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return fmt.Errorf("opening the agent's network namespace: %w", err)
	}
	if os.SameFile(info, own) {
		return bad("this is the node's own network namespace. A pod with hostNetwork needs no CNI call")
	}
	return nil
}
