package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// antreaKeys are the keys of Antrea's two config files and its feature gates, from 1.5 to 2.7, listed independently of
// the table.
const antreaKeys = `
activeFlowExportTimeout antreaClientConnection.acceptcontenttypes antreaClientConnection.burst
antreaClientConnection.contenttype antreaClientConnection.kubeconfig antreaClientConnection.qps
antreaProxy.defaultLoadBalancerMode antreaProxy.disableServiceHealthCheckServer antreaProxy.enable
antreaProxy.nodePortAddresses antreaProxy.proxyAll antreaProxy.proxyLoadBalancerIPs
antreaProxy.serviceHealthCheckServerBindAddress antreaProxy.serviceProxyName antreaProxy.skipServices apiPort
auditLogging.compress auditLogging.maxAge auditLogging.maxBackups auditLogging.maxSize
clientConnection.acceptcontenttypes clientConnection.burst clientConnection.contenttype clientConnection.kubeconfig
clientConnection.qps clusterPort cniSocket defaultMTU disableTXChecksumOffload dnsServerOverride egress.exceptCIDRs
egress.maxEgressIPsPerNode egress.snatFullyRandomPorts egress.uniqueMACForSubInterfaces enableBridgingMode
enableIPSecTunnel enablePrometheusMetrics externalNode.externalNodeNamespace externalNode.policyBypassRules
flowCollectorAddr flowExporter.activeFlowExportTimeout flowExporter.enable flowExporter.flowCollectorAddr
flowExporter.flowPollInterval flowExporter.idleFlowExportTimeout flowExporter.protocolFilter flowPollInterval
fqdnCacheMinTTL hostGateway hostNetworkAcceleration.enable hostNetworkMode hostProcPathPrefix idleFlowExportTimeout
ipsec.authenticationMode kubeAPIServerOverride multicast.enable multicast.igmpQueryInterval multicast.igmpQueryVersions
multicast.multicastInterfaces multicastInterfaces multicluster.enable multicluster.enableGateway
multicluster.enablePodToPodConnectivity multicluster.enableStretchedNetworkPolicy multicluster.namespace
multicluster.trafficEncryptionMode multicluster.wireGuard.port noSNAT nodePortLocal.enable nodePortLocal.portRange
nodeType nplPortRange ovsBridge ovsDatapathType ovsRunDir packetInRate secondaryNetwork.ovsBridges serviceCIDR
serviceCIDRv6 snatFullyRandomPorts tlsCipherSuites tlsMinVersion trafficEncapMode trafficEncryptionMode
transportInterface transportInterfaceCIDRs tunnelCsum tunnelPort tunnelType wireGuard.port`

const antreaControllerKeys = `
apiPort clientCAFile clientConnection.acceptcontenttypes clientConnection.burst clientConnection.contenttype
clientConnection.kubeconfig clientConnection.qps enablePrometheusMetrics ipsecCSRSigner.autoApprove
ipsecCSRSigner.selfSignedCA kubeAPIServerOverride legacyCRDMirroring multicluster.enableStretchedNetworkPolicy
multicluster.namespace nodeIPAM.clusterCIDRs nodeIPAM.enableNodeIPAM nodeIPAM.nodeCIDRMaskSizeIPv4
nodeIPAM.nodeCIDRMaskSizeIPv6 nodeIPAM.serviceCIDR nodeIPAM.serviceCIDRv6 selfSignedCert tlsCipherSuites
tlsMinVersion`

const antreaGates = `
AdminNetworkPolicy AllAlpha AllBeta AntreaIPAM AntreaNodeConfig AntreaPolicy AntreaProxy BGPPolicy
CleanupStaleUDPSvcConntrack Egress EgressSeparateSubnet EgressTrafficShaping EndpointSlice ExternalNode FlowExporter
IPsecCertAuth L7FlowExporter L7NetworkPolicy LoadBalancerModeDSR Multicast Multicluster NFTablesHostNetworkMode
NetworkPolicyStats NodeIPAM NodeLatencyMonitor NodeNetworkPolicy NodePortLocal PacketCapture
PreferSameTrafficDistribution SecondaryNetwork ServiceExternalIP ServiceTrafficDistribution SupportBundleCollection
TopologyAwareHints TrafficControl Traceflow`

// ours are the keys that Antrea does not have.
const ours = "apiAddress manifestsDir podCIDRWait ipam.conflictProbeTimeout ipam.coolingPeriod ipam.allocationsDir " +
	"networkPolicies policyLogDenied policyStart policyStartWait reachability services uplink.allowManaged uplink.mode uplink.rollbackAfter"

const controllerOurs = "apiAddress ipam.poolWarningPercent reclaim.enable reclaim.gracePeriod reclaim.coolingPeriod"

func TestTableHasEveryKeyOnce(t *testing.T) {
	for _, file := range []struct {
		in   File
		keys string
	}{{Agent, antreaKeys + " " + ours}, {Controller, antreaControllerKeys + " " + controllerOurs}} {
		want := map[string]bool{}
		for _, key := range strings.Fields(file.keys) {
			want[key] = true
		}
		for _, gate := range strings.Fields(antreaGates) {
			want["featureGates."+gate] = true
		}
		seen := map[string]bool{}
		for _, e := range Table() {
			if e.In&file.in == 0 {
				continue
			}
			if seen[e.Key] {
				t.Errorf("%s: %s stands twice in the table", file.in, e.Key)
			}
			if !want[e.Key] {
				t.Errorf("%s: %s is neither a key of Antrea nor one of ours", file.in, e.Key)
			}
			seen[e.Key] = true
		}
		for key := range want {
			if !seen[key] {
				t.Errorf("%s: %s is missing in the table", file.in, key)
			}
		}
	}
}

func TestTableRowsAreComplete(t *testing.T) {
	for _, e := range Table() {
		if e.Text == "" || e.Want.Text == "" || e.In == 0 {
			t.Errorf("%s: a row needs a file, a text and the values it takes", e.Key)
		}
		if honoured := e.Effect == Honoured; honoured != (e.set != nil) || honoured != (e.Default != "") {
			t.Errorf("%s: a key is honoured if, and only if, it has a default and is stored", e.Key)
		}
		for _, v := range append(exceptions(e), e.Harmless...) {
			if _, err := readValue(t, e, v); err != nil {
				t.Errorf("%s: %s has an effect of its own and is no valid value: %v", e.Key, v, err)
			}
		}
	}
}

func exceptions(e Entry) []string {
	var values []string
	for _, x := range e.Except {
		values = append(values, x.Value)
	}
	return values
}

// Every value of every key has its effect: alone in a file, in the section where it belongs.
func TestEffects(t *testing.T) {
	for _, e := range Table() {
		for _, in := range []File{Agent, Controller} {
			if e.In&in == 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", in, e.Key), func(t *testing.T) {
				// A key may have only values whose effects differ from the key's.
				if v := e.sample(t); !slices.Contains(append(exceptions(e), e.Harmless...), v) {
					expect(t, in, e, v, e.Effect, e.Text)
				}
				for _, v := range e.Harmless {
					expect(t, in, e, v, Honoured, "")
				}
				for _, x := range e.Except {
					expect(t, in, e, x.Value, x.Effect, x.Text)
				}
				expect(t, in, e, "null", Honoured, "")
				if _, err := run(in, lines(e.Key, "{a: {b: c}}")); err == nil {
					t.Error("a section is accepted as the value")
				}
			})
		}
	}
}

func expect(t *testing.T, in File, e Entry, value string, effect Effect, text string) {
	t.Helper()
	config := lines(e.Key, value)
	switch {
	case e.Key == "noSNAT":
		config += "trafficEncapMode: noEncap\n"
	case e.Key == "nodeIPAM.enableNodeIPAM" && value == "true":
		config += "  clusterCIDRs: [10.1.0.0/16]\n"
	}
	warnings, err := run(in, config)
	switch {
	case effect == Refused && err == nil:
		t.Errorf("%s: accepted, want it refused", value)
	case effect == Refused && !strings.Contains(err.Error(), e.Key+": "+value+" is not supported: "+text) &&
		!strings.Contains(err.Error(), "[…] is not supported: "+text):
		t.Errorf("%s: %v\nwant it refused: %s", value, err, text)
	case effect != Refused && err != nil:
		t.Errorf("%s: %v", value, err)
	case effect == Honoured && len(warnings) > 0:
		t.Errorf("%s: warnings %v, want none", value, warnings)
	case effect == Ignored && e.Effect == Ignored && len(warnings) == 1 && warnings[0].Text == "has no effect: "+text:
	case effect == Ignored && (len(warnings) != 1 || !strings.HasPrefix(warnings[0].Text, text)):
		t.Errorf("%s: warnings %v, want one: %s", value, warnings, text)
	}
}

// Every honoured key sets one field of the struct, and every field has its key.
func TestHonouredKeysLandInTheStruct(t *testing.T) {
	setBy := map[string]string{}
	base := fields("", reflect.ValueOf(defaults(Agent).AgentConfig))
	for _, e := range honouredKeys() {
		config := lines(e.Key, e.sample(t))
		if e.Key == "noSNAT" {
			config += "trafficEncapMode: noEncap\n"
		}
		c, _, err := Parse([]byte(config), "f")
		if err != nil {
			t.Fatal(err)
		}
		changed := 0
		for field, value := range fields("", reflect.ValueOf(c)) {
			if reflect.DeepEqual(base[field], value) || e.Key == "noSNAT" && field == "TrafficEncapMode" {
				continue
			}
			changed++
			if setBy[field] != "" {
				t.Errorf("%s is set by %s and by %s", field, setBy[field], e.Key)
			}
			setBy[field] = e.Key
			if !strings.EqualFold(field, e.Key) {
				t.Errorf("%s sets %s, want the field of its own name", e.Key, field)
			}
		}
		if changed != 1 {
			t.Errorf("%s changed %d fields, want 1", e.Key, changed)
		}
	}
	for field := range base {
		if setBy[field] == "" {
			t.Errorf("no key sets AgentConfig.%s", field)
		}
	}
}

// fields returns the values of the config's struct and of those in it, by their path. prefix ends in a dot, or is
// empty.
func fields(prefix string, v reflect.Value) map[string]any {
	out := map[string]any{}
	for i := range v.NumField() {
		name := prefix + v.Type().Field(i).Name
		if v.Field(i).Type().PkgPath() == v.Type().PkgPath() && v.Field(i).Kind() == reflect.Struct { // a section
			maps.Copy(out, fields(name+".", v.Field(i)))
			continue
		}
		out[name] = v.Field(i).Interface()
	}
	return out
}

// sample returns a valid value of e that is not its default, preferably one without an effect of its own.
func (e Entry) sample(t *testing.T) string {
	t.Helper()
	candidates := []string{"true", "false", "7000", "66", "20", "[10.1.0.0/16, fd00::/64]", "[x]", "[2]", "7s", "20s",
		"10.1.2.3", "/some/path", "10.1.0.0/16", "fd00:1::/112", "something"}
	if values, ok := strings.CutPrefix(e.Want.Text, "one of "); ok {
		candidates = strings.Split(values, ", ")
	}
	for _, s := range candidates {
		v, err := readValue(t, e, s)
		if err != nil || s == e.Default {
			continue
		}
		if effect, text := e.effect(v); effect == e.Effect && text == e.Text {
			return s
		}
	}
	if len(e.Except) > 0 {
		return e.Except[0].Value // every other value is an exception
	}
	if len(e.Harmless) > 0 {
		return e.Harmless[0]
	}
	t.Fatalf("%s: no sample value", e.Key)
	return ""
}

func run(in File, config string) ([]Finding, error) {
	_, warnings, err := check([]byte(config), "f", in)
	return warnings, err
}

// lines writes a key and its value as YAML, in its sections.
func lines(key, value string) string {
	var b strings.Builder
	parts := strings.Split(key, ".")
	for i, part := range parts {
		b.WriteString(strings.Repeat("  ", i) + part + ":")
		if i < len(parts)-1 {
			b.WriteString("\n")
		}
	}
	return b.String() + " " + value + "\n"
}

func readValue(t *testing.T, e Entry, value string) (Value, error) {
	t.Helper()
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(value), &n); err != nil {
		t.Fatalf("%s: %v", e.Key, err)
	}
	return e.Want.of(n.Content[0])
}

func TestInterfacePattern(t *testing.T) {
	for value, valid := range map[string]bool{
		"eth0": true, "bond0.100": true, "en*": true, "eth[01]": true, "en[^op]?s0": true, "eno12345678901*": true,
		"eno1234567890123": false, "eth[": false, `eth\0`: false, "eth 0*": false, "..": false, "-*": true,
		"e*" + strings.Repeat("n", 63): false, "[eth0, eth1]": false,
	} {
		got, err := readValue(t, Entry{Want: interfacePattern()}, value)
		if (err == nil) != valid || valid && got.Str != value {
			t.Errorf("%s: %q, %v", value, got.Str, err)
		}
	}
}
