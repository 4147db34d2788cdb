package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Warning is the content of a Warning Event.
type Warning struct {
	// About is the object: kind, name, UID and, unless it is cluster-wide,
	// namespace. The UID makes `kubectl describe` show the Event.
	About corev1.ObjectReference
	// Reason is one word in CamelCase, Message a sentence or two.
	Reason, Message string
	// Once leaves an existing Event as it is: for what every agent reports. Otherwise the Event's time and message are
	// updated.
	Once bool
}

// warnTimeout bounds the writing of one Event.
const warnTimeout = 5 * time.Second

// maxMessage is the longest message that the API server accepts in an Event (events.k8s.io/v1, note), maxObjectName how
// much of an object's name goes into the Event's, in bytes.
const maxMessage, maxObjectName = 1024, 200

// Warn writes a Warning Event. Its name is derived from the object and the reason, so there is one Event, however many
// agents write it, across restarts, and however often the numbers in the message change. The API server deletes Events
// after an hour, unless it is configured otherwise. Warn does nothing without a client: with inputs from a directory
// there is no API server.
func (c *Client) Warn(ctx context.Context, node string, w Warning) error {
	if c == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, warnTimeout)
	defer cancel()
	e := w.event(node, metav1.Now())
	events := c.Kubernetes.CoreV1().Events(e.Namespace)
	var err error
	if !w.Once { // it usually exists: others see the same fault, and this agent did before
		renewed, jerr := json.Marshal(map[string]any{"lastTimestamp": e.LastTimestamp, "message": e.Message})
		if jerr != nil {
			return jerr
		}
		_, err = events.Patch(ctx, e.Name, types.MergePatchType, renewed, metav1.PatchOptions{})
	}
	if w.Once || apierrors.IsNotFound(err) {
		_, err = events.Create(ctx, e, metav1.CreateOptions{})
	}
	if apierrors.IsAlreadyExists(err) {
		return nil // it has just been written
	}
	if err != nil {
		return fmt.Errorf("writing the Event %s about %s %s: %w", w.Reason, w.About.Kind, w.About.Name, err)
	}
	return nil
}

func (w Warning) event(node string, now metav1.Time) *corev1.Event {
	message := w.Message
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage-len("…")], "") + "…"
	}
	namespace := w.About.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: w.name()},
		InvolvedObject: w.About, Type: corev1.EventTypeWarning, Reason: w.Reason, Message: message, Count: 1,
		FirstTimestamp: now, LastTimestamp: now,
		Source:              corev1.EventSource{Component: Component, Host: node},
		ReportingController: Component, ReportingInstance: node,
	}
}

// name is a valid name of an Event: the object's, and a hash of its UID and the reason.
func (w Warning) name() string {
	h := fnv.New64a()
	fmt.Fprint(h, w.About.APIVersion, " ", w.About.Kind, " ", w.About.UID, " ", w.Reason)
	object := w.About.Name
	if len(object) > maxObjectName {
		object = strings.TrimRight(object[:maxObjectName], "-.")
	}
	return fmt.Sprintf("%s.%016x", object, h.Sum64())
}

// NodeReference is the named Node as an Event's object. Its UID is the name, as in
// kubelet's own Events about Nodes; `kubectl describe node` shows both.
func NodeReference(name string) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(name)}
}
