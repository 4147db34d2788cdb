package pods

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
)

// The error about an address that a pod holds names the pod: a container ID means nothing to users.
func TestHolderIsNamed(t *testing.T) {
	r := attachments.Records{Pods: map[string]ovsdb.PodPort{"fl1": {Attachment: api.Attachment{ContainerID: "0123456789", BootID: "now",
		PodNamespace: "shop", PodName: "cart-1", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.1.254/24")}}}}}
	if err := takenBy(r, netip.MustParseAddr("10.0.1.254"), "fl2", "now"); err == nil || !strings.Contains(err.Error(), "pod shop/cart-1") {
		t.Errorf("of a pod: %v", err)
	}
	if err := takenBy(r, netip.MustParseAddr("10.0.1.253"), "fl2", "now"); err != nil {
		t.Errorf("of none: %v", err)
	}
}
