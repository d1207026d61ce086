package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// right is what the controller has to be allowed. A test compares the table with
// the ClusterRole of the chart, and the integration tests that one with what the
// controller asks for.
type right struct {
	group, resource, subresource string
	verbs                        []string
	name                         string
	// lease tells that the right is about the Lease and its namespace.
	lease bool
	// need is when it is needed; empty for always.
	need need
}

// need is when a right is needed.
type need string

const (
	// forPods is where a gate waits for pods.
	forPods need = "pods"
	// forChoices is where a hook chooses a service account or a priority class.
	forChoices need = "choices"
	// forMending is where the controller puts checks into queues by itself.
	forMending need = "mending"
)

const (
	kueueGroup  = "kueue.x-k8s.io"
	policyGroup = "admissionregistration.k8s.io"
)

// rights are those of the ClusterRole; leaseRights those in the namespace of the
// Lease.
var rights = []right{
	{group: kueueGroup, resource: "admissionchecks", verbs: []string{"list", "watch"}},
	{group: kueueGroup, resource: "workloads", verbs: []string{"get", "list", "watch", "patch"}},
	{group: kueueGroup, resource: "admissionchecks", subresource: "status", verbs: []string{"patch"}},
	{group: kueueGroup, resource: "workloads", subresource: "status", verbs: []string{"patch"}},
	{group: kueueGroup, resource: "clusterqueues", verbs: []string{"list", "watch"}},
	{group: kueueGroup, resource: "resourceflavors", verbs: []string{"list", "watch"}},
	{group: v1alpha1.GroupName, resource: "admissiongates", verbs: []string{"list", "watch"}},
	{group: v1alpha1.GroupName, resource: "admissiongates", subresource: "status", verbs: []string{"patch"}},
	{group: "trainer.kubeflow.org", resource: "trainjobs", verbs: []string{"get", "list", "watch", "patch"}},
	{group: "", resource: "serviceaccounts", verbs: []string{"get"}, need: forChoices},
	{group: "scheduling.k8s.io", resource: "priorityclasses", verbs: []string{"get"}, need: forChoices},
	{group: policyGroup, resource: "mutatingadmissionpolicies", verbs: []string{"get"}, name: v1alpha1.PodPolicyName, need: forChoices},
	{group: policyGroup, resource: "mutatingadmissionpolicybindings", verbs: []string{"get"}, name: v1alpha1.PodPolicyName, need: forChoices},
	{group: "", resource: "pods", verbs: []string{"list", "watch"}, need: forPods},
	{group: "batch", resource: "jobs", verbs: []string{"list", "watch"}, need: forPods},
	{group: "jobset.x-k8s.io", resource: "jobsets", verbs: []string{"list", "watch"}, need: forPods},
	{group: "events.k8s.io", resource: "events", verbs: []string{"create", "patch"}},
}

var leaseRights = []right{
	{group: "coordination.k8s.io", resource: "leases", verbs: []string{"create"}, lease: true},
	{group: "coordination.k8s.io", resource: "leases", verbs: []string{"get", "update"}, lease: true},
}

// mendRights are those that -mend-queues takes beside.
var mendRights = []right{
	{group: kueueGroup, resource: "clusterqueues", verbs: []string{"get", "patch"}, need: forMending},
	{group: kueueGroup, resource: "admissionchecks", verbs: []string{"get"}, need: forMending},
}

// String names what a right is about.
func (r right) String() string {
	name := r.resource
	if r.subresource != "" {
		name += "/" + r.subresource
	}
	if r.group != "" {
		name += "." + r.group
	}
	return name
}

// rights looks at the rights of an account: one line if it has all, else one for
// each kind that something is missing of.
func (c *Checker) rights(ctx context.Context, waitForPods bool) []Line {
	who, err := c.who(ctx)
	if err != nil {
		return []Line{unknown("rights", err)}
	}
	var lines []Line
	all := slices.Concat(rights, leaseRights)
	if c.Mend {
		all = append(all, mendRights...)
	}
	for _, r := range all {
		var missing []string
		for _, verb := range r.verbs {
			allowed, err := c.may(ctx, who, r, verb)
			if err != nil {
				return []Line{unknown("rights of "+who.name, err)}
			}
			if !allowed {
				missing = append(missing, verb)
			}
		}
		if len(missing) > 0 {
			lines = append(lines, judgeRight(who.name, r, missing, waitForPods))
		}
	}
	if len(lines) == 0 {
		return []Line{ok("rights", "%s has all rights of the controller", who.name)}
	}
	return lines
}

// judgeRight says what it means that verbs are missing.
func judgeRight(who string, r right, missing []string, waitForPods bool) Line {
	what := "right " + r.String()
	found := fmt.Sprintf("%s may not %s", who, strings.Join(missing, ", "))
	fix := "grant it; the ClusterRole of the chart (rbac.create) has it"
	switch {
	case r.lease:
		return wrong(what, "grant it in the namespace of the Lease; the Role of the chart has it", "%s", found)
	case r.need == forMending:
		return wrong(what, "grant it, or run dispatch-admission without -mend-queues", "%s", found)
	case r.need == forPods && !waitForPods:
		return warn(what, fix+", with rbac.waitForPods", "%s; a gate with waitForPods would need it", found)
	case r.need == forPods:
		return wrong(what, fix+", with rbac.waitForPods; or set waitForPods of the gates to false", "%s", found)
	case r.need == forChoices:
		return warn(what, fix, "%s; hooks can choose neither service accounts nor priority classes", found)
	}
	return wrong(what, fix, "%s", found)
}

// account is whose rights are looked at.
type account struct {
	name string
	// groups are empty for whoever asks.
	groups []string
}

// who finds out whose rights are looked at.
func (c *Checker) who(ctx context.Context) (account, error) {
	if a := c.Account; a.Name != "" {
		return account{
			name:   "system:serviceaccount:" + a.Namespace + ":" + a.Name,
			groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + a.Namespace, "system:authenticated"},
		}, nil
	}
	var self authenticationv1.SelfSubjectReview
	if err := c.Client.Create(ctx, &self); err != nil {
		return account{}, err
	}
	return account{name: self.Status.UserInfo.Username}, nil
}

// may asks the API server. About another account that takes a right of its own, to
// create subjectaccessreviews.
func (c *Checker) may(ctx context.Context, who account, r right, verb string) (bool, error) {
	attributes := &authorizationv1.ResourceAttributes{Verb: verb, Group: r.group, Resource: r.resource, Subresource: r.subresource, Name: r.name}
	if r.lease {
		attributes.Namespace = c.Lease.Namespace
		if verb != "create" { // whose name is not in the URL
			attributes.Name = c.Lease.Name
		}
	}
	if who.groups == nil {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes}}
		err := c.Client.Create(ctx, review)
		return review.Status.Allowed, err
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: attributes, User: who.name, Groups: who.groups}}
	err := c.Client.Create(ctx, review)
	return review.Status.Allowed, err
}
