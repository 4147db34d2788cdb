package config

const noController = "fairlead-controller is not built yet: each Node's podCIDRs must come from elsewhere, from " +
	"kube-controller-manager or from the Node's manifest"

// controllerKeys are the keys of Antrea's controller alone. Fairlead has no
// controller yet, so its file is only checked.
func controllerKeys() []Entry {
	yes, no := []string{"true"}, []string{"false"}
	return []Entry{
		{In: Controller, Key: "kubeAPIServerOverride", Want: anyText(), Fate: Ignored, Text: noController},
		{In: Controller, Key: "clientConnection.kubeconfig", Want: anyText(), Fate: Ignored, Text: noController},
		{In: Controller, Key: "clientConnection.acceptcontenttypes", Want: anyText(), Fate: Ignored, Text: noController},
		{In: Controller, Key: "clientConnection.contenttype", Want: anyText(), Fate: Ignored, Text: noController},
		{In: Controller, Key: "clientConnection.qps", Want: integer(0, 1<<31-1), Fate: Ignored, Text: noController},
		{In: Controller, Key: "clientConnection.burst", Want: integer(0, 1<<31-1), Fate: Ignored, Text: noController},
		{In: Controller, Key: "nodeIPAM.enableNodeIPAM", Want: boolean(), Fate: Ignored, Harmless: no, Text: noController},
		{In: Controller, Key: "nodeIPAM.clusterCIDRs", Want: subnets(), Fate: Ignored, Text: noController},
		{In: Controller, Key: "nodeIPAM.serviceCIDR", Want: subnet(), Fate: Ignored, Text: noController},
		{In: Controller, Key: "nodeIPAM.serviceCIDRv6", Want: subnet(), Fate: Ignored, Text: noController},
		{In: Controller, Key: "nodeIPAM.nodeCIDRMaskSizeIPv4", Want: orZero(16, 30), Fate: Ignored,
			Harmless: []string{"0", "24"}, Text: noController},
		{In: Controller, Key: "nodeIPAM.nodeCIDRMaskSizeIPv6", Want: orZero(64, 126), Fate: Ignored,
			Harmless: []string{"0", "64"}, Text: noController},
		{In: Controller, Key: "apiPort", Want: port(), Fate: Ignored, Harmless: []string{"0", "10349"}, Text: noController},
		{In: Controller, Key: "enablePrometheusMetrics", Want: boolean(), Fate: Ignored, Harmless: yes, Text: noController},
		{In: Controller, Key: "selfSignedCert", Want: boolean(), Fate: Ignored, Harmless: yes, Text: noController},
		{In: Controller, Key: "clientCAFile", Want: anyText(), Fate: Ignored, Text: noController},
		{In: Controller, Key: "legacyCRDMirroring", Want: boolean(), Fate: Ignored, Harmless: no,
			Text: "Fairlead mirrors no resources of older API groups"},
		{In: Controller, Key: "ipsecCSRSigner.selfSignedCA", Want: boolean(), Fate: Ignored, Harmless: yes,
			Text: "there is no IPsec, so no certificate is signed for it"},
		{In: Controller, Key: "ipsecCSRSigner.autoApprove", Want: boolean(), Fate: Ignored, Harmless: yes,
			Text: "there is no IPsec, so no certificate is signed for it"},
	}
}
