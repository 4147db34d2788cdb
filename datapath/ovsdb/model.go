package ovsdb

import (
	"github.com/ovn-org/libovsdb/client"
	"github.com/ovn-org/libovsdb/model"
)

// The columns that matter here, of the tables of ovs-vswitchd.conf.db(5).

type openVSwitch struct {
	UUID    string   `ovsdb:"_uuid"`
	Bridges []string `ovsdb:"bridges"`
	NextCfg int      `ovsdb:"next_cfg"`
	CurCfg  int      `ovsdb:"cur_cfg"`
}

type bridge struct {
	UUID         string            `ovsdb:"_uuid"`
	Name         string            `ovsdb:"name"`
	Ports        []string          `ovsdb:"ports"`
	DatapathType string            `ovsdb:"datapath_type"`
	FailMode     *string           `ovsdb:"fail_mode"`
	Protocols    []string          `ovsdb:"protocols"`
	ExternalIDs  map[string]string `ovsdb:"external_ids"`
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
}

// number is the interface's OpenFlow port number, 0 while it has none.
func (i iface) number() uint32 {
	if i.OFPort == nil || *i.OFPort < 0 {
		return 0
	}
	return uint32(*i.OFPort)
}

// broken reports that ovs-vswitchd could not open the device.
func (i iface) broken() bool { return i.OFPort != nil && *i.OFPort < 0 }

func (i iface) problem() string {
	if i.Error == nil {
		return ""
	}
	return *i.Error
}

func databaseModel() (model.ClientDBModel, error) {
	return model.NewClientDBModel("Open_vSwitch", map[string]model.Model{
		"Open_vSwitch": &openVSwitch{}, "Bridge": &bridge{}, "Port": &port{}, "Interface": &iface{},
	})
}

// columns limits a monitor to the columns above: others, such as statistics,
// change every few seconds.
func columns() []client.MonitorOption {
	o, b, p, i := &openVSwitch{}, &bridge{}, &port{}, &iface{}
	return []client.MonitorOption{
		client.WithTable(o, &o.Bridges, &o.NextCfg, &o.CurCfg),
		client.WithTable(b, &b.Name, &b.Ports, &b.DatapathType, &b.FailMode, &b.Protocols, &b.ExternalIDs),
		client.WithTable(p, &p.Name, &p.Interfaces, &p.ExternalIDs),
		client.WithTable(i, &i.Name, &i.Type, &i.MAC, &i.MTURequest, &i.Options, &i.OFPortRequest, &i.OFPort, &i.Error),
	}
}
