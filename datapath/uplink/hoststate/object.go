package hoststate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// Kind is the kind of an Object.
type Kind string

// The kinds of objects.
const (
	Address   Kind = "address"
	Route     Kind = "route"
	Rule      Kind = "rule"
	Neighbour Kind = "neighbour"
)

// messages are rtnetlink's message types for one kind, and the length of the header before the attributes.
type messages struct {
	add, del, get, header int
}

var kinds = map[Kind]messages{
	Address:   {unix.RTM_NEWADDR, unix.RTM_DELADDR, unix.RTM_GETADDR, unix.SizeofIfAddrmsg},
	Route:     {unix.RTM_NEWROUTE, unix.RTM_DELROUTE, unix.RTM_GETROUTE, unix.SizeofRtMsg},
	Rule:      {unix.RTM_NEWRULE, unix.RTM_DELRULE, unix.RTM_GETRULE, 12}, // struct fib_rule_hdr
	Neighbour: {unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH, unix.RTM_GETNEIGH, unix.SizeofNdMsg},
}

// Object is one address, route, rule or neighbour.
type Object struct {
	Kind Kind `json:"kind"`
	// Text is for people: see text.go. No program reads it.
	Text string `json:"text"`
	// Data is the payload of the kernel's message: its header, then its attributes.
	Data []byte `json:"data"`
}

// Check rejects an object that the kernel cannot have produced.
func (o Object) Check() error {
	m, known := kinds[o.Kind]
	if !known {
		return fmt.Errorf("unknown kind of object %q", o.Kind)
	}
	if len(o.Data) < m.header {
		return fmt.Errorf("%s %q is truncated", o.Kind, o.Text)
	}
	if _, err := parseAttrs(o.Data[m.header:]); err != nil {
		return fmt.Errorf("%s %q: %w", o.Kind, o.Text, err)
	}
	return nil
}

// nlaTypeMask removes NLA_F_NESTED and NLA_F_NET_BYTEORDER (linux/netlink.h) from a type.
const nlaTypeMask = 1<<14 - 1

// attr is one attribute: its type without flags, and its value.
type attr struct {
	typ   uint16
	value []byte
}

var errAttrs = errors.New("its attributes are invalid")

func parseAttrs(b []byte) (attrs []attr, err error) {
	for len(b) >= unix.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			return nil, errAttrs
		}
		attrs = append(attrs, attr{binary.NativeEndian.Uint16(b[2:]) & nlaTypeMask, b[unix.SizeofRtAttr:size]})
		b = b[min(align(size), len(b)):]
	}
	if len(b) > 0 {
		return nil, errAttrs
	}
	return attrs, nil
}

// align is RTA_ALIGN.
func align(size int) int { return (size + 3) &^ 3 }

func appendAttr(b []byte, typ uint16, value []byte) []byte {
	size := unix.SizeofRtAttr + len(value)
	b = binary.NativeEndian.AppendUint16(b, uint16(size))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, value...)
	return append(b, make([]byte, align(size)-size)...)
}

func u32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// header and attrs split a checked object.
func (o Object) header() []byte { return o.Data[:kinds[o.Kind].header] }

func (o Object) attrs() []attr {
	attrs, _ := parseAttrs(o.Data[kinds[o.Kind].header:]) // checked when it was read
	return attrs
}

// attr returns the value of an attribute, nil if there is none.
func (o Object) attr(typ uint16) []byte {
	for _, a := range o.attrs() {
		if a.typ == typ {
			return a.value
		}
	}
	return nil
}

func (o Object) number(typ uint16) uint32 {
	if v := o.attr(typ); len(v) >= 4 {
		return binary.NativeEndian.Uint32(v)
	}
	return 0
}

// family is AF_INET or AF_INET6: the first byte of every header.
func (o Object) family() byte { return o.Data[0] }

// edit returns the object with a changed header and attributes. change gets each attribute and returns its replacement,
// nil for none; more are added.
func (o Object) edit(head func([]byte), change func(attr) []byte, more ...attr) Object {
	b := append([]byte(nil), o.header()...)
	head(b)
	for _, a := range o.attrs() {
		if v := change(a); v != nil {
			b = appendAttr(b, a.typ, v)
		}
	}
	for _, a := range more {
		b = appendAttr(b, a.typ, a.value)
	}
	o.Data = b
	return o
}

// dump lists all objects of a kind; family 0 is all, flags are of the header (rtnetlink(7), ndm_flags).
func dump(kind Kind, family, flags byte) ([]Object, error) {
	m := kinds[kind]
	return kernel.Dump(func() ([]Object, error) {
		req := nl.NewNetlinkRequest(m.get, unix.NLM_F_DUMP)
		head := make([]byte, m.header)
		head[0] = family
		if kind == Neighbour {
			head[10] = flags
		}
		req.AddRawData(head)
		msgs, err := req.Execute(unix.NETLINK_ROUTE, uint16(m.add))
		if err != nil {
			return nil, fmt.Errorf("listing %s objects: %w", kind, err)
		}
		var all []Object
		for _, data := range msgs {
			o := Object{Kind: kind, Data: data}
			if err := o.Check(); err != nil {
				return nil, fmt.Errorf("the kernel's answer: %w", err)
			}
			all = append(all, o)
		}
		return all, nil
	})
}

// send adds the object, with flags such as NLM_F_CREATE, or deletes it.
func (o Object) send(typ, flags int) error {
	req := nl.NewNetlinkRequest(typ, flags|unix.NLM_F_ACK)
	req.AddRawData(o.Data)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// add returns an error that is fs.ErrExist if the object exists.
func (o Object) add(flags int) error { return o.send(kinds[o.Kind].add, flags|unix.NLM_F_CREATE) }

// ensure adds the object, and succeeds if it exists.
func (o Object) ensure() error {
	if err := o.add(unix.NLM_F_EXCL); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// remove succeeds if the object does not exist.
func (o Object) remove() error {
	err := o.send(kinds[o.Kind].del, 0)
	for _, gone := range []error{unix.ESRCH, unix.ENOENT, unix.EADDRNOTAVAIL, unix.ENODEV} {
		if errors.Is(err, gone) {
			return nil
		}
	}
	return err
}

// Remove removes objects. A missing one is not an error.
func Remove(list []Object) error { return each("removing", list, Object.remove) }

// each calls it for all objects; the error names those for which it failed.
func each(doing string, list []Object, it func(Object) error) error {
	var errs []error
	for _, o := range list {
		if err := it(o); err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", doing, o.Text, err))
		}
	}
	return errors.Join(errs...)
}
