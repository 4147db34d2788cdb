package controller

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/nodecidr"
)

// Events of NodeIPAM about Nodes.

const (
	// rewriteAfter is when an Event is written again. The API server deletes it after an hour.
	rewriteAfter = 30 * time.Minute
	// eventsInPass is how many are written in a pass, the others by later ones: thousands of Nodes may wait.
	eventsInPass = 50
)

// report writes Events about Nodes that wait or have faulty podCIDRs, and logs them.
func (n *nodeIPAM) report(p nodecidr.Plan) {
	maps.DeleteFunc(n.reported, func(_ string, at time.Time) bool { return time.Since(at) > rewriteAfter })
	for _, w := range p.Waiting {
		n.warn(w.Node, types.UID(w.UID), api.EventCIDRNotAvailable, w.Cause, w.Why)
	}
	for _, f := range p.Faults {
		for _, name := range []string{f.Node, f.Other} {
			if obj, ok, _ := n.world.nodes.GetByKey(name); ok {
				if node, ok := obj.(*corev1.Node); ok {
					n.warn(name, node.UID, api.EventInvalidPodCIDR, f.Text, f.Text)
				}
			}
		}
	}
}

// warn writes an Event about a Node, unless one of that reason and cause was written recently.
func (n *nodeIPAM) warn(node string, uid types.UID, reason, cause, text string) {
	key := string(uid) + reason + cause
	if _, reported := n.reported[key]; reported || n.eventsWritten >= eventsInPass {
		return
	}
	n.eventsWritten++
	n.reported[key] = time.Now()
	n.log.Info("problem with a Node", "node", node, "reason", reason, "message", text)
	n.events.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: uid}, corev1.EventTypeWarning,
		reason, text)
}
