package controller

import (
	"context"
	"fmt"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/nodecidr"
)

// Release of claims of Nodes that are gone, or have other podCIDRs.

// staleInPass is how many Nodes are looked at in a pass for their stale claims, each with at most two reads: thousands
// may have been deleted at once, and their claims wait for their pods.
const staleInPass = 20

// releaseStale looks at some of the Nodes of stale claims, and removes the claims that the API server confirms to be
// stale.
func (n *nodeIPAM) releaseStale(ctx context.Context, claims []nodecidr.Claim) {
	of := map[string][]nodecidr.Claim{}
	var uids []string
	for _, c := range claims {
		if of[c.UID] == nil {
			uids = append(uids, c.UID)
		}
		of[c.UID] = append(of[c.UID], c)
	}
	for _, uid := range n.vacancies.Due(uids, staleInPass) {
		if err := n.release(ctx, uid, of[uid]); err != nil && ctx.Err() == nil && !passing(err) {
			n.log.Error(err, "removing PodCIDRClaims failed, will retry", "node", of[uid][0].Node)
		}
	}
}

// release removes those of a Node's claims whose podCIDRs it no longer has: it has others, or it and its pods are gone.
func (n *nodeIPAM) release(ctx context.Context, uid string, claims []nodecidr.Claim) error {
	var podCIDRs []netip.Prefix
	for _, c := range claims {
		podCIDRs = append(podCIDRs, c.PodCIDR)
	}
	vacant, err := n.vacancies.Check(ctx, claims[0].Node, uid, podCIDRs)
	if err != nil {
		return err
	}
	for _, p := range vacant {
		if err := n.remove(ctx, p, uid); err != nil {
			return err
		}
	}
	return nil
}

// remove removes the claim of a podCIDR for the Node with that UID.
func (n *nodeIPAM) remove(ctx context.Context, p netip.Prefix, uid string) error {
	name := nodecidr.Name(p)
	obj, _, _ := n.claims.GetByKey(name)
	claim, ok := obj.(*api.PodCIDRClaim)
	if !ok || claim.Spec.NodeUID != uid {
		return nil
	}
	err := n.client.Resource(api.ClaimResource).Delete(ctx, name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &claim.UID}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing the claim %s: %w", name, err)
	}
	n.log.Info("released podCIDR", "podCIDR", p, "node", claim.Spec.Node)
	return nil
}
