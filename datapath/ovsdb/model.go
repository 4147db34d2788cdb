package ovsdb

import (
	"strings"

	"github.com/ovn-org/libovsdb/client"
	"github.com/ovn-org/libovsdb/model"
)

// The columns used here, of the tables in ovs-vswitchd.conf.db(5).

type openVSwitch struct {
	UUID    string   `ovsdb:"_uuid"`
	Bridges []string `ovsdb:"bridges"`
	NextCfg int      `ovsdb:"next_cfg"`
	CurCfg  int      `ovsdb:"cur_cfg"`
	// OtherConfig and ExternalIDs: see restorewait.go.
	OtherConfig map[string]string `ovsdb:"other_config"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
	Datapaths   map[string]string `ovsdb:"datapaths"` // by type
}

type bridge struct {
	UUID         string            `ovsdb:"_uuid"`
	Name         string            `ovsdb:"name"`
	Ports        []string          `ovsdb:"ports"`
	DatapathType string            `ovsdb:"datapath_type"`
	DatapathID   *string           `ovsdb:"datapath_id"`
	FailMode     *string           `ovsdb:"fail_mode"`
	Protocols    []string          `ovsdb:"protocols"`
	ExternalIDs  map[string]string `ovsdb:"external_ids"`
	FlowTables   map[int]string    `ovsdb:"flow_tables"`
	Controller   []string          `ovsdb:"controller"`
	STP          bool              `ovsdb:"stp_enable"`
	RSTP         bool              `ovsdb:"rstp_enable"`
}

type flowTable struct {
	UUID     string   `ovsdb:"_uuid"`
	Prefixes []string `ovsdb:"prefixes"`
}

type datapath struct {
	UUID        string            `ovsdb:"_uuid"`
	CTZones     map[int]string    `ovsdb:"ct_zones"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

type ctZone struct {
	UUID          string            `ovsdb:"_uuid"`
	TimeoutPolicy *string           `ovsdb:"timeout_policy"`
	ExternalIDs   map[string]string `ovsdb:"external_ids"`
}

type ctTimeoutPolicy struct {
	UUID        string            `ovsdb:"_uuid"`
	Timeouts    map[string]int    `ovsdb:"timeouts"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

type port struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	Interfaces  []string          `ovsdb:"interfaces"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

type iface struct {
	UUID          string            `ovsdb:"_uuid"`
	Name          string            `ovsdb:"name"`
	Type          string            `ovsdb:"type"`
	MAC           *string           `ovsdb:"mac"`
	MTURequest    *int              `ovsdb:"mtu_request"`
	Options       map[string]string `ovsdb:"options"`
	OFPortRequest *int              `ovsdb:"ofport_request"`
	OFPort        *int              `ovsdb:"ofport"`
	Error         *string           `ovsdb:"error"`
	Ifindex       *int              `ovsdb:"ifindex"`
	LinkState     *string           `ovsdb:"link_state"`
}

// number is the interface's OpenFlow port number, 0 while it has none.
func (i *iface) number() uint32 {
	if i.OFPort == nil || *i.OFPort < 0 {
		return 0
	}
	return uint32(*i.OFPort)
}

func (i *iface) requested() uint32 {
	if i.OFPortRequest == nil || *i.OFPortRequest < 0 {
		return 0
	}
	return uint32(*i.OFPortRequest)
}

// gone reports that the port has no device. When a device vanishes the userspace datapath keeps the port number and the
// empty error, and shows it by link state and index only.
func (i *iface) gone() bool {
	return i.OFPort != nil && *i.OFPort < 0 ||
		i.Ifindex != nil && *i.Ifindex == 0 && i.LinkState != nil && *i.LinkState == "down"
}

// lost reports that a bridge's own port has lost its number because its device is missing: only the datapath creates
// that device.
func (i *iface) lost() bool {
	return i.OFPort != nil && *i.OFPort < 0 && i.Error != nil && strings.HasSuffix(*i.Error, "(No such device)")
}

// problem returns what keeps the port from working; empty if nothing is known.
func (i *iface) problem() string {
	switch {
	case i.Error != nil && *i.Error != "":
		return *i.Error
	case i.gone():
		return "the device is gone"
	}
	return ""
}

func databaseModel() (model.ClientDBModel, error) {
	return model.NewClientDBModel("Open_vSwitch", map[string]model.Model{
		"Open_vSwitch": &openVSwitch{}, "Bridge": &bridge{}, "Port": &port{}, "Interface": &iface{},
		"Flow_Table": &flowTable{}, "Datapath": &datapath{}, "CT_Zone": &ctZone{}, "CT_Timeout_Policy": &ctTimeoutPolicy{},
	})
}

// columns limits a monitor to the columns above: others, such as statistics,
// change every few seconds.
func columns() []client.MonitorOption {
	o, b, t, p, i := &openVSwitch{}, &bridge{}, &flowTable{}, &port{}, &iface{}
	d, z, c := &datapath{}, &ctZone{}, &ctTimeoutPolicy{}
	return []client.MonitorOption{
		client.WithTable(o, &o.Bridges, &o.NextCfg, &o.CurCfg, &o.OtherConfig, &o.ExternalIDs, &o.Datapaths),
		client.WithTable(b, &b.Name, &b.Ports, &b.DatapathType, &b.DatapathID, &b.FailMode, &b.Protocols,
			&b.ExternalIDs, &b.FlowTables, &b.Controller, &b.STP, &b.RSTP),
		client.WithTable(t, &t.Prefixes),
		client.WithTable(d, &d.CTZones, &d.ExternalIDs),
		client.WithTable(z, &z.TimeoutPolicy, &z.ExternalIDs),
		client.WithTable(c, &c.Timeouts, &c.ExternalIDs),
		client.WithTable(p, &p.Name, &p.Interfaces, &p.ExternalIDs),
		client.WithTable(i, &i.Name, &i.Type, &i.MAC, &i.MTURequest, &i.Options, &i.OFPortRequest, &i.OFPort, &i.Error,
			&i.Ifindex, &i.LinkState),
	}
}
