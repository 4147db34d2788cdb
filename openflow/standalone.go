package openflow

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

// OFPP_NORMAL, with which the bridge is a learning switch.
const outputNormal Output = 0xfffffffa

// Flags of a port's configuration (OFPPC_*, OpenFlow 1.5.1, 7.2.1). That a port is down shows at its interface.
var portFlags = []struct {
	bit  uint32
	name string // as ovs-ofctl(8), mod-port, has it
}{{1 << 2, "no-receive"}, {1 << 5, "no-forward"}}

// portConfig is the configuration of a port, in which it has its name.
type portConfig struct {
	name  string
	flags uint32
}

// Standalone returns, in words, how the bridge differs from one with fail_mode standalone and no controller
// (ovs-vswitchd.conf.db(5)): that has one flow, which makes it a learning switch, and no port that is configured not to
// receive or to forward. It changes nothing.
func (s *Switch) Standalone(ctx context.Context) (differences []string, err error) {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	flows, err := s.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing flows: %w", err)
	}
	normal := false
	for _, l := range flows {
		if l.isNormal() {
			normal = true
		} else {
			differences = append(differences, fmt.Sprintf("flow %q added", change{flow: l.flow}.text()))
		}
	}
	if !normal {
		differences = append(differences, "flow NORMAL deleted")
	}
	ports, err := s.ports(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing ports: %w", err)
	}
	for _, p := range ports {
		var set []string
		for _, f := range portFlags {
			if p.flags&f.bit != 0 {
				set = append(set, f.name)
			}
		}
		if len(set) > 0 {
			differences = append(differences, fmt.Sprintf("port %s set to %s", p.name, strings.Join(set, ", ")))
		}
	}
	return differences, nil
}

func (l listed) isNormal() bool {
	f := l.flow
	return f.Table == 0 && f.Priority == 0 && !l.unsupported && !l.limited && f.Match == (Match{}) &&
		len(f.Actions) == 1 && f.Actions[0] == outputNormal
}

// ports returns the configuration of all ports.
func (s *Switch) ports(ctx context.Context) (out []portConfig, err error) {
	xid := s.conn.Reserve(2)
	parts, err := s.parts(ctx, xid, encodePorts(xid))
	if err != nil {
		return nil, err
	}
	for _, m := range parts {
		list, err := portsOf(m)
		if err != nil {
			return nil, err
		}
		out = append(out, list...)
	}
	return out, nil
}

const (
	multipartPortDesc = 13
	anyPort           = 0xffffffff // OFPP_ANY
	portLen           = 40         // of a struct ofp_port without properties
	portNameLen       = 16
)

// encodePorts asks for the descriptions of all ports (OpenFlow 1.5.1, 7.3.5.5).
func encodePorts(xid uint32) []byte {
	body := binary.BigEndian.AppendUint16(nil, multipartPortDesc)
	body = append(body, make([]byte, 6)...) // flags, padding
	body = binary.BigEndian.AppendUint32(body, anyPort)
	return ofconn.Encode(msgMultipartRequest, xid, append(body, make([]byte, 4)...))
}

// portsOf reads one part of the list: each struct ofp_port has number (4 bytes), length (2), padding (2), address (6),
// padding (2), name (16), config (4), state (4) and properties.
func portsOf(m ofconn.Message) (out []portConfig, err error) {
	if len(m.Body) < 8 || binary.BigEndian.Uint16(m.Body) != multipartPortDesc {
		return nil, fmt.Errorf("not a port description reply: %w", ofconn.ErrShort)
	}
	for rest := m.Body[8:]; len(rest) > 0; {
		port, tail, ok := cut(rest, u16(rest, 4), portLen)
		if !ok {
			return nil, fmt.Errorf("decoding a port description: %w", ofconn.ErrShort)
		}
		name, _, _ := bytes.Cut(port[16:16+portNameLen], []byte{0})
		out = append(out, portConfig{string(name), binary.BigEndian.Uint32(port[16+portNameLen:])})
		rest = tail
	}
	return out, nil
}
