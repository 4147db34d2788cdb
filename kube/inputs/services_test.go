package inputs

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"
)

const webYAML = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd00:10:96::a"]
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
  internalTrafficPolicy: Local
  ports:
  - {name: http, port: 80, targetPort: main}
  - {name: dns, port: 53, protocol: UDP}
  - {name: sig, port: 99, protocol: SCTP}
`

const webEndpointsYAML = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports:
- {name: http, port: 8080, protocol: TCP}
- {name: any}
endpoints:
- {addresses: [10.77.1.2, 10.77.1.3], nodeName: node1, hints: {forZones: [{name: a}], forNodes: [{name: node1}]}}
- {addresses: [10.77.2.2], conditions: {ready: false, serving: true, terminating: true}}
`

// A Service and its endpoints are read as compact values, and each change names the Services that it concerns.
func TestServices(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "node.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: me, labels: {topology.kubernetes.io/zone: a}}\n")
	d := runDirectory(t, dir)
	if changed, known := d.Services().Take(); !known || len(changed) > 0 {
		t.Errorf("before: %v, known: %t", changed, known)
	}
	if zone := d.Snapshot().Nodes["me"].Zone; zone != "a" {
		t.Errorf("the Node is in zone %q", zone)
	}
	write(t, dir, "web.yaml", webYAML)
	write(t, dir, "slice.yaml", webEndpointsYAML)
	d.Refresh()
	taken(t, d, "shop/web")
	svc, endpoints, found := d.Services().Service("shop/web")
	if want := (Service{Namespace: "shop", Name: "web", Affinity: time.Minute, Local: true,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::a")},
		Ports:      []ServicePort{{"http", 6, 80}, {"dns", 17, 53}, {"sig", 132, 99}}}); !found || !reflect.DeepEqual(svc, want) {
		t.Errorf("the Service is %+v, want %+v", svc, want)
	}
	if want := []EndpointSlice{{Namespace: "shop", Name: "web-1", Service: "web", Ports: []ServicePort{{"http", 6, 8080}},
		Endpoints: []Endpoint{
			{Addr: netip.MustParseAddr("10.77.1.2"), Ready: true, Serving: true, Node: "node1",
				Hints: &Hints{ForNodes: []string{"node1"}, ForZones: []string{"a"}}},
			{Addr: netip.MustParseAddr("10.77.2.2"), Serving: true, Terminating: true},
		}}}; !reflect.DeepEqual(endpoints, want) {
		t.Errorf("the endpoints are %+v, want %+v", endpoints, want)
	}
	taken(t, d) // changes are taken once

	// A slice that moves to another Service concerns both Services.
	write(t, dir, "slice.yaml", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
		"metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: other}}\naddressType: IPv4\nendpoints: []\n")
	d.Refresh()
	taken(t, d, "shop/other", "shop/web")
	if _, endpoints, _ := d.Services().Service("shop/web"); len(endpoints) > 0 {
		t.Errorf("web keeps the endpoints %v", endpoints)
	}
	// One that becomes headless or of type ExternalName no longer has ClusterIPs.
	for _, spec := range []string{"{clusterIP: None}", "{type: ExternalName, externalName: example.com}"} {
		write(t, dir, "web.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: "+spec+"\n")
		d.Refresh()
		taken(t, d, "shop/web")
		if svc, _, found := d.Services().Service("shop/web"); !found || len(svc.ClusterIPs) > 0 {
			t.Errorf("%s: found: %t, %+v", spec, found, svc)
		}
		write(t, dir, "web.yaml", webYAML)
		d.Refresh()
		taken(t, d, "shop/web")
	}
	write(t, dir, "web.yaml", "")
	d.Refresh()
	taken(t, d, "shop/web")
	if _, _, found := d.Services().Service("shop/web"); found {
		t.Error("the Service is there without a manifest")
	}
}

func taken(t *testing.T, d *Directory, want ...string) {
	t.Helper()
	if got, known := d.Services().Take(); !known || !slices.Equal(got, want) {
		t.Errorf("changed: %v, known: %t; want %v", got, known, want)
	}
}

// Until both kinds have been read, Services are not known, rather than known without endpoints.
func TestServicesAreUnknownAtFirst(t *testing.T) {
	s := newServices()
	s.putService("default/web", nil, &Service{Name: "web"}, true)
	s.markRead("services")
	if changed, known := s.Take(); known {
		t.Errorf("known without EndpointSlices: %v", changed)
	}
	s.markRead("endpointslices")
	if changed, known := s.Take(); !known || !slices.Equal(changed, []string{"default/web"}) {
		t.Errorf("%v, known: %t", changed, known)
	}
}
