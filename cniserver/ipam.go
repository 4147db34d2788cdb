package cniserver

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/fairlead-cni/fairlead/cniserver/wire"
)

// IPAM does the work of the verbs where another plugin (macvlan, bridge, ipvlan) creates the interface and Fairlead is
// its IPAM plugin. Errors are as those of a Handler. Its addresses for an attachment are independent of a Handler's for
// one of the same name.
type IPAM interface {
	// Add allocates addresses of pools. Repeated for the same attachment it returns the same ones. After an error it
	// holds nothing that it did not hold before.
	Add(context.Context, AddressRequest) ([]Address, error)
	// Del releases them. It succeeds if there are none.
	Del(context.Context, Request) error
	// Check returns an error if PrevAddrs differ from what the attachment holds.
	Check(context.Context, AddressRequest) error
	// GC releases what attachments of the network other than the valid ones hold. It leaves other networks alone.
	GC(ctx context.Context, network string, valid []AttachmentID) error
	// Status returns an error if the named pools cannot allocate addresses now.
	Status(ctx context.Context, pools []string) error
}

// AddressRequest is one ADD or CHECK by another plugin, validated. Its PrevAddrs are without those that the
// configuration itself names.
type AddressRequest struct {
	Request
	// Pools are names of IPPools, of the key ipam.ippools. There may be none.
	Pools []string
	// Wanted are requested addresses of Pools, at most one of each family. One without a mask has a full-length one.
	Wanted []netip.Prefix
}

// Address is an address with the mask of its subnet, and the gateway there, if any.
type Address struct {
	Prefix  netip.Prefix
	Gateway netip.Addr
}

// ipamRequest validates r by the rules of its verb, and the key ipam for all but DEL and GC: these clean up whatever
// has become of the configuration.
func (c *call) ipamRequest(r wire.Request, conf netConf) (err error) {
	var args ipamArgs
	switch c.verb {
	case "DEL":
		return c.delRequest(r)
	case "GC":
		c.valid, err = conf.validAttachments()
		return err
	case "ADD", "CHECK":
		if err := c.delRequest(r); err != nil {
			return err
		}
		if err := checkNetns(r.Netns); err != nil {
			return err
		}
		if args, err = parseIPAMArgs(r.Args); err != nil {
			return err
		}
		c.request.setPod(args.podArgs)
	}
	if c.ipam, err = conf.ipam(args); err != nil || c.verb != "CHECK" {
		return err
	}
	prev, err := conf.prevAddresses(r.IfName)
	if err != nil {
		return err
	}
	c.request.PrevAddrs, err = c.ipam.withoutStatic(prev)
	return err
}

// withoutStatic are the addresses of a prevResult other than those that the configuration names, which must all be
// there.
func (i ipamConf) withoutStatic(prev []Address) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, p := range prev {
		if !slices.ContainsFunc(i.static, func(s Address) bool { return s.Prefix == p.Prefix }) {
			out = append(out, p.Prefix)
		}
	}
	for _, s := range i.static {
		at := slices.IndexFunc(prev, func(p Address) bool { return s.Prefix == p.Prefix })
		switch {
		case at < 0:
			return nil, types.NewError(CodeCheck, fmt.Sprintf("prevResult lacks the address %s of the network configuration: it was changed since the ADD. Recreate the pod", s.Prefix), "")
		case s.Gateway.IsValid() && prev[at].Gateway != s.Gateway:
			return nil, types.NewError(CodeCheck, fmt.Sprintf("prevResult has another gateway for %s than %s of the network configuration: it was changed since the ADD. Recreate the pod", s.Prefix, s.Gateway), "")
		}
	}
	return out, nil
}

// prevAddresses are the addresses of the interface in prevResult, and those without an interface: the result of an IPAM
// plugin alone.
func (c netConf) prevAddresses(ifName string) ([]Address, error) {
	prev, err := c.previous()
	if err == nil && prev == nil {
		err = errNoPrevResult()
	}
	if err != nil {
		return nil, err
	}
	var out []Address
	for _, ip := range prev.IPs {
		if i := ip.Interface; i != nil && (*i < 0 || *i >= len(prev.Interfaces) || prev.Interfaces[*i].Name != ifName) {
			continue
		}
		a := Address{}
		if a.Prefix, err = netip.ParsePrefix(ip.Address); err != nil {
			return nil, badPrevResult("address %q: %v", ip.Address, err)
		}
		if ip.Gateway != "" {
			if a.Gateway, err = netip.ParseAddr(ip.Gateway); err != nil {
				return nil, badPrevResult("gateway %q: %v", ip.Gateway, err)
			}
		}
		out = append(out, a)
	}
	return out, nil
}

// handleIPAM calls IPAM and returns the result of an ADD, encoded.
func (s *Server) handleIPAM(ctx context.Context, c *call) ([]byte, error) {
	ipam, r := s.cfg.IPAM, AddressRequest{Request: c.request, Pools: c.ipam.pools, Wanted: c.ipam.wanted}
	switch c.verb {
	case "ADD":
		given, err := ipam.Add(ctx, r)
		if err != nil {
			return nil, ended(ctx, err)
		}
		return c.encodeAddresses(given)
	case "DEL":
		return nil, ended(ctx, ipam.Del(ctx, c.request))
	case "CHECK":
		return nil, ended(ctx, ipam.Check(ctx, r))
	case "GC":
		return nil, ended(ctx, ipam.GC(ctx, c.network, c.valid))
	}
	return nil, ended(ctx, ipam.Status(ctx, r.Pools))
}
