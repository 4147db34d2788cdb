package pods

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// A pod with a correct interface, but without a port in ovs-vswitchd, is cut off.
func TestRootCheckWithoutAPort(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet is sent")
	node, pod := nstest.New(t), nstest.New(t)
	ovs := ovstest.Start(t, ovstest.Options{})
	db, err := ovsdb.Connect(t.Context(), "unix:"+ovs.DBSocket, logr.Discard())
	must(t, err)
	defer db.Close()
	p := &Pods{Parts: Parts{Board: status.NewBoard(nil), Log: logr.Discard(),
		Registry: attachments.New(db, "br-int", "boot", &attachments.Recorded{})}}
	p.Board.Publish(&status.Status{PodMTU: 1410})
	a := p.attachment("c", "eth0")
	a.Netns, a.Addrs = pod.Path, []netip.Prefix{netip.MustParsePrefix("10.0.1.5/24")}
	ovs.Vswitchd.Kill()
	_, err = db.Ensure(t.Context(), ovsdb.Desired{Bridge: "br-int", DatapathType: "dummy", Gateway: ovsdb.GatewayPort{
		Name: "fairlead-gw0", MAC: api.MAC{2, 0, 0, 0, 1, 1}, MTU: 1410}, Pods: []api.Attachment{a}})
	must(t, err)
	node.Must(func() error {
		veth, err := link.Create(p.podLink(a, p.Board.Load()))
		if err != nil {
			return err
		}
		return veth.Configure()
	})
	err = node.Do(func() error {
		return p.Check(t.Context(), cniserver.Request{ContainerID: "c", IfName: "eth0", Netns: pod.Path})
	})
	if err == nil || !strings.Contains(err.Error(), "is it running?") {
		t.Errorf("CHECK says %v", err)
	}
}
