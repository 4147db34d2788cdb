package agents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/config"
	"github.com/fairlead-cni/fairlead/diagnose/checks"
	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

const (
	// configMap has the agents' config file if the chart or the manifest has installed them.
	configMap, agentConf = "fairlead-config", "agent.conf"
	// maxNodes is how many nodes' agents are queried; with more nodes, only those that an Event reports as not reached.
	maxNodes = 100
	// answerLimit is how long one answer may take, and allLimit all together.
	answerLimit, allLimit = 10 * time.Second, 15 * time.Second
	// reasonNotReached is the reason of the Events that agents write about such nodes.
	reasonNotReached = "PodsNotReached"
)

// All queries the agents of all nodes about which other nodes' pods they do not reach, if they probe according to the
// installed config; on a node, that node's own config decides first. The error is checks.ErrNotProbed if they do not.
// notQueried says which were not queried, and why.
func (k Querier) All(ctx context.Context, v *cluster.View) (
	answers []Answer, notQueried string, err error) {
	ctx, cancel := context.WithTimeout(ctx, allLimit)
	defer cancel()
	lacking := errors.New("their agents are queried by commands in their Pods, for which these credentials lack the rights (get and " +
		"create pods/exec in kube-system)")
	switch {
	case k.Node == nil:
	case k.Node.Reachability != api.ReachabilityProbe:
		return nil, "", checks.ErrNotProbed
	case !k.mayQuery(ctx): // as in an agent's own Pod: nothing is tried that is forbidden
		return nil, "", lacking
	}
	m, err := k.Client.Kubernetes.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, configMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, "", checks.ErrNotProbed
	} else if err != nil {
		return nil, "", cluster.Explain("the ConfigMap "+configMap, err)
	}
	cfg, _, err := config.Parse([]byte(m.Data[agentConf]), agentConf)
	switch {
	case err != nil || cfg.Reachability != api.ReachabilityProbe:
		return nil, "", cmp.Or(err, checks.ErrNotProbed)
	case k.Node == nil && !k.mayQuery(ctx):
		return nil, "", lacking
	}
	nodes, notQueried := selectNodes(v, k.own(ctx))
	answers, err = k.query(ctx, answerLimit, nodes, func(string) string { return "" })
	return answers, notQueried, err
}

// mayQuery reports whether commands may be run in agents' Pods, and true if the API server does not say: by WebSocket
// that is a get, by SPDY, and by WebSocket from Kubernetes 1.35 on, a create.
func (k Querier) mayQuery(ctx context.Context) bool {
	for _, verb := range []string{"get", "create"} {
		exec := &authorizationv1.ResourceAttributes{Namespace: metav1.NamespaceSystem, Verb: verb, Resource: "pods",
			Subresource: "exec"}
		review := &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: exec}}
		r, err := k.Client.Kubernetes.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err == nil && !r.Status.Allowed {
			return false
		}
	}
	return true
}

// selectNodes returns the nodes whose agents are queried, of those that may have one. Other nodes that are not ready
// are left out: a query would only time out.
func selectNodes(v *cluster.View, own string) (nodes []string, notQueried string) {
	left, away := 0, 0
	all := slices.DeleteFunc(slices.Clone(v.Nodes), func(n cluster.Node) bool { return n.NoAgent != "" })
	for _, n := range all {
		reported := slices.ContainsFunc(v.Warnings, func(w cluster.Warning) bool {
			return w.Reason == reasonNotReached && w.About == "Node "+n.Name
		})
		switch {
		case n.Name == own:
			nodes = append(nodes, n.Name)
		case n.Ready != "True":
			away++
		case len(all) <= maxNodes || reported:
			nodes = append(nodes, n.Name)
		default:
			left++
		}
	}
	var why []string
	if left > 0 {
		why = append(why, fmt.Sprintf("the agents of %d nodes: in clusters of more than %d, only those of nodes with an Event %s are queried",
			left, maxNodes, reasonNotReached))
	}
	if away > 0 {
		why = append(why, report.Count(away, "the agent of 1 node that is not ready was not queried",
			"the agents of %d nodes that are not ready were not queried"))
	}
	return nodes, strings.Join(why, "; ")
}

// Sides is All for doctor.
func (k Querier) Sides(ctx context.Context) (sides []reach.Side, notKnown []string, err error) {
	v := cluster.Read(ctx, k.Client, cluster.Nodes, cluster.Warnings)
	if err := v.Missing(cluster.Nodes, cluster.Warnings); err != nil {
		return nil, nil, err
	}
	answers, notQueried, err := k.All(ctx, v)
	if err != nil {
		return nil, nil, err
	}
	if notQueried != "" {
		notKnown = append(notKnown, "reach: "+notQueried)
	}
	for _, a := range answers {
		sides = append(sides, a.Side(""))
	}
	if none := !slices.ContainsFunc(sides, func(s reach.Side) bool { return s.NotQueried == "" }); none && len(sides) > 0 {
		return nil, nil, errors.New("no agent has answered: " + strings.Join(NotQueried(sides), "; "))
	}
	return sides, append(notKnown, NotQueried(sides)...), nil
}

// NotQueried says which nodes' agents have not answered, by reason.
func NotQueried(sides []reach.Side) (lines []string) {
	failed := map[string][]string{}
	for _, s := range sides {
		if s.NotQueried != "" {
			failed[s.NotQueried] = append(failed[s.NotQueried], s.Node)
		}
	}
	for why, nodes := range failed {
		lines = append(lines, fmt.Sprintf("which nodes' pods are reached from %s: %s", report.Some(nodes), why))
	}
	slices.Sort(lines)
	return lines
}
