package uplink

import (
	"github.com/prometheus/client_golang/prometheus"
)

// steerCounts are the counters of the uplink's programs in mode steer, read when the metrics are collected.
type steerCounts struct{ uplink *Uplink }

func (steerCounts) desc() (frames, bytes *prometheus.Desc) {
	labels := []string{"from", "to"}
	return prometheus.NewDesc("fairlead_uplink_frames_total",
			"Frames that the programs of uplink mode steer sent, by source and destination. A frame that the NIC merges or splits counts once.",
			labels, nil),
		prometheus.NewDesc("fairlead_uplink_bytes_total", "Bytes of these frames.", labels, nil)
}

// Describe implements prometheus.Collector.
func (c steerCounts) Describe(out chan<- *prometheus.Desc) {
	frames, bytes := c.desc()
	out <- frames
	out <- bytes
}

// Collect implements prometheus.Collector.
func (c steerCounts) Collect(out chan<- prometheus.Metric) {
	frames, bytes := c.desc()
	for _, n := range c.uplink.counts() {
		out <- prometheus.MustNewConstMetric(frames, prometheus.CounterValue, float64(n.Frames), n.Source, n.Way)
		out <- prometheus.MustNewConstMetric(bytes, prometheus.CounterValue, float64(n.Bytes), n.Source, n.Way)
	}
}
