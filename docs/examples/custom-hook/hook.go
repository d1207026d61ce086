package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// budgets is a hook that asks a service how much of its budget a tenant has
// left, which no policy in a file can know.
type budgets struct {
	url string // the service answers GET <url>/<tenant> with {"left": 12.5}
}

var _ admission.Hook = budgets{}

// Admit holds the work of a tenant who has nothing left.
func (b budgets) Admit(ctx context.Context, req *admission.Request) (admission.Decision, error) {
	left, err := b.left(ctx, req.TenantID)
	switch {
	case err != nil:
		return admission.Decision{}, err // no verdict: this hook cannot tell
	case left <= 0:
		return admission.Hold("the budget of your team is used up; it is filled up on the first of the month"), nil
	}
	return admission.Admit(), nil
}

// left asks the service. The context ends when nobody waits for the answer.
func (b budgets) left(ctx context.Context, tenant string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url+"/"+url.PathEscape(tenant), http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the budget service says %s", resp.Status)
	}
	var budget struct {
		Left float64 `json:"left"`
	}
	err = json.NewDecoder(resp.Body).Decode(&budget)
	return budget.Left, err
}
