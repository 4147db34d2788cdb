package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/fairlead-cni/fairlead/datapath/capture"
)

// Limits on what another node may send. maxStep is how many bytes may come with a packet, including what precedes it.
const (
	maxInterfaces = 64
	maxTextRunes  = 1000
	maxStep       = 1 << 20
)

// The errors of a stream that is not a capture's.
var (
	errNoFile = errors.New("the stream is not a pcapng file")
	errStep   = errors.New("there is more data between two packets than a capture writes")
)

// stream reads the file that another node writes while it captures.
type stream struct {
	node string
	from *pcapgo.NgReader
	step *io.LimitedReader // under from
	// begun is closed when the interfaces are known: their statistics follow after all of them.
	begun chan struct{}
	once  sync.Once
	of    []Interface
	lost  [maxInterfaces]atomic.Uint64
}

func newStream(node string) *stream { return &stream{node: node, begun: make(chan struct{})} }

// open reads the beginning. No more than limit bytes of the stream are read in all.
func (s *stream) open(r io.Reader, limit int64) (err error) {
	whole := bufio.NewReader(io.LimitReader(r, limit))
	// The library would decompress the stream, to any size.
	if magic, err := whole.Peek(4); err == nil && binary.BigEndian.Uint32(magic) != sectionHeader {
		return errNoFile
	}
	s.step = &io.LimitedReader{R: whole, N: maxStep}
	options := pcapgo.NgReaderOptions{WantMixedLinkType: true, StatisticsCallback: s.statistics}
	s.from, err = pcapgo.NewNgReader(s.step, options)
	return err
}

// sectionHeader is the type of the first block of a file, in either byte order (draft-ietf-opsawg-pcapng, section 4.1).
const sectionHeader = 0x0a0d0d0a

// statistics is the reader's callback for statistics blocks: it takes the interfaces once, and the lost packets.
func (s *stream) statistics(at int, read pcapgo.NgInterfaceStatistics) {
	s.once.Do(func() {
		for i := range min(s.from.NInterfaces(), maxInterfaces) {
			n, err := s.from.Interface(i)
			if err != nil {
				break
			}
			s.of = append(s.of, Interface{printable(n.Name), printable(n.Description), printable(n.Comment)})
		}
		close(s.begun)
	})
	if at < maxInterfaces && read.PacketsDropped != pcapgo.NgNoValue64 {
		s.lost[at].Store(read.PacketsDropped)
	}
}

// printable is a text from another machine without control characters, which a terminal would obey.
func printable(text string) string {
	clean := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, text)
	return string([]rune(clean)[:min(len([]rune(clean)), maxTextRunes)])
}

// next waits for a packet. It returns io.EOF if the stream ends after a whole packet.
func (s *stream) next() (int, capture.Frame, error) {
	s.step.N = maxStep
	data, info, options, err := s.from.ReadPacketDataWithOptions()
	switch {
	case err != nil && s.step.N <= 0 || s.from.NInterfaces() > maxInterfaces:
		return 0, capture.Frame{}, errStep
	case err != nil:
		return 0, capture.Frame{}, err
	}
	if err := s.check(data, info); err != nil {
		return 0, capture.Frame{}, err
	}
	f := capture.Frame{Time: info.Timestamp, Data: data, Length: info.Length}
	if flags := options.Flags; flags != nil {
		f.Outgoing = flags.Direction == pcapgo.NgEpbFlagDirectionOutbound
	}
	return info.InterfaceIndex, f, nil
}

func (s *stream) check(data []byte, info gopacket.CaptureInfo) error {
	n, err := s.from.Interface(info.InterfaceIndex)
	switch {
	case err != nil:
		return err
	case info.InterfaceIndex >= len(s.of):
		return fmt.Errorf("a packet of an interface that is not described: %d of %d", info.InterfaceIndex, len(s.of))
	case n.LinkType != layers.LinkTypeEthernet:
		return fmt.Errorf("a packet that is not an Ethernet frame: link type %d", n.LinkType)
	case len(data) > capture.MaxSnapLen+maxTag || info.Length < len(data):
		return fmt.Errorf("a packet of %d bytes with %d in the stream", info.Length, len(data))
	}
	return nil
}

// maxTag is the VLAN tag that a frame may have beyond its snap length, in bytes.
const maxTag = 4
