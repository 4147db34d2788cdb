package capture

import (
	"io"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/fairlead-cni/fairlead/datapath/capture"
)

// file writes a pcapng file.
type file struct {
	w      *pcapgo.NgWriter
	begun  time.Time
	counts []Count
	bytes  int64
}

// blockBytes is the file's overhead per packet, with options and padding.
const blockBytes = 48

// create writes the beginning of the file, up to a statistics block for each interface, which says that the capture has
// begun.
func create(w io.Writer, comment string, snapLen int, all []Interface) (*file, error) {
	f := &file{begun: time.Now()}
	for i, n := range all {
		described := pcapgo.NgInterface{Name: n.Name, Description: n.Description, Comment: n.Filter, OS: "Linux",
			LinkType: layers.LinkTypeEthernet, SnapLength: uint32(snapLen)}
		var err error
		if i == 0 {
			f.w, err = pcapgo.NewNgWriterInterface(w, described, pcapgo.NgWriterOptions{
				SectionInfo: pcapgo.NgSectionInfo{OS: "Linux", Application: "fairleadctl", Comment: comment}})
		} else {
			_, err = f.w.AddInterface(described)
		}
		if err != nil {
			return nil, err
		}
		f.counts = append(f.counts, Count{Interface: n})
	}
	return f, f.statistics(time.Time{})
}

// statistics writes the counts of all interfaces, and flushes the buffer.
func (f *file) statistics(end time.Time) error {
	for i, c := range f.counts {
		err := f.w.WriteInterfaceStats(i, pcapgo.NgInterfaceStatistics{LastUpdate: time.Now(), StartTime: f.begun,
			EndTime: end, PacketsReceived: uint64(c.Packets), PacketsDropped: c.Lost})
		if err != nil {
			return err
		}
	}
	return f.w.Flush()
}

// size is the number of bytes that a frame takes in the file.
func size(p capture.Frame) int64 { return int64(len(p.Data)) + blockBytes }

func (f *file) write(p packet) error {
	direction := pcapgo.NgEpbFlagDirectionInbound
	if p.Outgoing {
		direction = pcapgo.NgEpbFlagDirectionOutbound
	}
	err := f.w.WritePacketWithOptions(gopacket.CaptureInfo{Timestamp: p.Time, CaptureLength: len(p.Data), Length: p.Length,
		InterfaceIndex: p.at}, p.Data, pcapgo.NgPacketOptions{Flags: &pcapgo.NgEpbFlags{Direction: direction}})
	f.counts[p.at].Packets++
	f.bytes += size(p.Frame)
	return err
}
