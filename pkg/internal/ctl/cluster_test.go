package ctl

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/ctl/preflight"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// bareServer is an API server of an old Kubernetes with nothing installed, which
// allows nothing. It writes a kubeconfig and points $KUBECONFIG to it.
func bareServer(t *testing.T) {
	t.Helper()
	answers := map[string]any{
		"/version":                       map[string]any{"major": "1", "minor": "31", "gitVersion": "v1.31.4"},
		"/api":                           map[string]any{"kind": "APIVersions", "versions": []string{"v1"}},
		"/apis":                          map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": []any{group("authorization.k8s.io"), group("authentication.k8s.io"), group("coordination.k8s.io"), group("apps")}},
		"/api/v1":                        resources("v1"),
		"/apis/authorization.k8s.io/v1":  resources("authorization.k8s.io/v1", "selfsubjectaccessreviews SelfSubjectAccessReview"),
		"/apis/authentication.k8s.io/v1": resources("authentication.k8s.io/v1", "selfsubjectreviews SelfSubjectReview"),
		"/apis/coordination.k8s.io/v1":   resources("coordination.k8s.io/v1", "leases Lease"),
		"/apis/apps/v1":                  resources("apps/v1", "deployments Deployment"),
		"/apis/apps/v1/deployments":      map[string]any{"kind": "DeploymentList", "apiVersion": "apps/v1", "items": []any{}},
		"POST selfsubjectreviews":        map[string]any{"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "status": map[string]any{"userInfo": map[string]any{"username": "jane"}}},
		"POST selfsubjectaccessreviews":  map[string]any{"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "status": map[string]any{"allowed": false}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		key := r.URL.Path
		if r.Method == http.MethodPost {
			key = "POST " + filepath.Base(r.URL.Path)
		}
		answer, ok := answers[key]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			answer = map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": "the server could not find the requested resource"}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	const text = `{"apiVersion": "v1", "kind": "Config", "current-context": "x",
"clusters": [{"name": "x", "cluster": {"server": %q}}], "users": [{"name": "x", "user": {}}], "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}`
	if err := os.WriteFile(path, fmt.Appendf(nil, text, server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", path)
}

func group(name string) map[string]any {
	version := map[string]any{"groupVersion": name + "/v1", "version": "v1"}
	return map[string]any{"name": name, "versions": []any{version}, "preferredVersion": version}
}

func resources(groupVersion string, kinds ...string) map[string]any {
	list := []any{}
	for _, k := range kinds {
		name, kind, _ := strings.Cut(k, " ")
		list = append(list, map[string]any{"name": name, "kind": kind, "namespaced": kind == "Lease", "verbs": []string{"create", "get", "list"}})
	}
	return map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": groupVersion, "resources": list}
}

// TestBareCluster: where Kueue is missing, every command says so, and what is to be
// taken out of it is gone.
func TestBareCluster(t *testing.T) {
	bareServer(t)
	var all strings.Builder
	for _, line := range []string{
		"queues detach --all --check policy --hold-first", "queues detach training", "queues detach training --check policy -o json",
		"queues status", "queues attach training --check policy", "queues attach training",
		"prepare-uninstall --check policy --gate policy", "prepare-uninstall --check policy --policy Refuse -o json",
		"verify --check policy --gate policy --queue training --timeout 0s",
		"request team-a/wl", "explain -n team-a job/train", "preflight", "preflight -o yaml",
		"request team-a/wl --context nowhere",
	} {
		fmt.Fprintf(&all, "$ %s %s\n%s\n", Name, line, run(t, "", strings.Fields(line)...))
	}
	golden(t, "bare-cluster", all.String())
}

// TestTables shows what the commands print that only a cluster with Kueue fills.
func TestTables(t *testing.T) {
	var all strings.Builder
	wired := wiringResult{Results: []wiring.Result{
		{Queue: "training", Check: "policy", Change: wiring.Attached},
		{Queue: "batch", Check: "policy", Change: wiring.Withdrawn, Problem: "taken back, because it made the queue inactive: …"},
		{Queue: "old", Check: "policy", Change: wiring.Detached, Held: true, Note: "it was put there by argocd; take it out there too, or it may come back"},
		{Queue: "old", Check: "other", Change: wiring.Unchanged, Held: true, Problem: "gave up waiting"},
	}}
	wired.text(&all)
	wired.DryRun = true
	wired.text(&all)
	(&wiringResult{}).text(&all)
	(&uninstallResult{Policy: policyDetach, wiringResult: wiringResult{Results: wired.Results[2:3]}, Gates: []gateResult{
		{Gate: "policy", Deleted: true}, {Gate: "other", Note: "it does not exist"},
	}}).text(&all)
	statusText(&all, []wiring.Status{
		{Queue: "training", Check: "policy", Wired: true, By: []string{"dispatchctl/policy"}, Active: true, Waiting: 2, Pending: 5},
		{Queue: "batch", Check: "policy", Wired: true, OnFlavors: []string{"a100", "h100"}, By: []string{"argocd", "kubectl"}, WhyNot: "is stopped"},
		{Queue: "free", Active: true, WhyNot: "no check of ours: its jobs start ungated"},
	})
	preflightText(&all, []preflight.Line{
		{What: "Kueue", State: preflight.OK, Found: "v0.19.2"}, {What: "Lease", State: preflight.Wrong, Found: "nobody holds it", Fix: "see why"},
	})
	preflightText(&all, []preflight.Line{{What: "Kueue", State: preflight.OK, Found: "v0.19.2"}})
	golden(t, "tables", all.String())
}
