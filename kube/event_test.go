package kube

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Writing an existing Event costs one request: agents that see the same fault write the same Event.
func TestWarnPatchesFirst(t *testing.T) {
	var asked []string
	status := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status[r.Method])
		if reason := map[int]string{404: "NotFound", 409: "AlreadyExists"}[status[r.Method]]; reason != "" {
			w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"` + reason + `"}`))
			return
		}
		w.Write([]byte(`{"kind":"Event","apiVersion":"v1"}`))
	}))
	defer server.Close()
	set, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	c := &Client{Kubernetes: set}
	for _, s := range []struct {
		patch, post int
		once        bool
		want        []string
	}{
		{patch: 200, want: []string{"PATCH"}},
		{patch: 404, post: 201, want: []string{"PATCH", "POST"}},
		{patch: 404, post: 409, want: []string{"PATCH", "POST"}}, // another agent was first
		{post: 201, once: true, want: []string{"POST"}},
		{post: 409, once: true, want: []string{"POST"}},
	} {
		asked, status = nil, map[string]int{"PATCH": s.patch, "POST": s.post}
		w := Warning{About: NodeReference("a"), Reason: "R", Message: "m", Once: s.once}
		if err := c.Warn(t.Context(), "n", w); err != nil || !slices.Equal(asked, s.want) {
			t.Errorf("%+v: %q, %v", s, asked, err)
		}
	}
}
