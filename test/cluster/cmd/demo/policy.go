package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// The jobs that a hook is asked about.
const (
	patient = "patient"
	large   = "large"
)

// The policy of the demo: two rules, and one for as long as it is frozen.
const (
	freeze = `{"name":"freeze","hold":"weekly maintenance freeze"}`
	lasts  = `{"name":"small-jobs","when":"request.podSets.map(p, p.count).sum() > 2","refuse":"a job may have at most 2 pods; lower trainer.numNodes"},` +
		`{"name":"placement","admit":{"nodeSelector":{"pool":"'research'"}}}`
)

// setPolicy changes the policy of the release.
func (d *demo) setPolicy(ctx context.Context, rules string) error {
	return d.helm(ctx, "upgrade", release, chart, "--reuse-values", "--wait", "--set-json", "adapter.policy.rules=["+rules+"]",
		"--set-json", `admissionChecks=[{"name":"dispatch-admission","gate":{"hook":{"hold":{"reofferInterval":"2s"}}}}]`)
}

// addPolicy puts a policy in place.
func (d *demo) addPolicy(ctx context.Context) (err error) {
	d.say("An operator's policy: the admission hook",
		"Three rules in the values of the chart: one holds every job, one refuses large ones, one places the rest. The",
		"adapter beside the controller takes them over without a restart, and is asked about every job of the queue.")
	if _, err := d.output(ctx, "kubectl", "label", "node", "--all", "pool=research"); err != nil {
		return err
	}
	if err := d.setPolicy(ctx, freeze+","+lasts); err != nil {
		return err
	}
	if err := d.awaitPolicy(ctx, 2); err != nil {
		return err
	}
	return d.kubectl(ctx, "get", "admissiongates")
}

// awaitPolicy waits until the adapter has taken a policy over, the first one being 1.
func (d *demo) awaitPolicy(ctx context.Context, generation int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !strings.Contains(d.log("adapter"), fmt.Sprintf("generation=%d ", generation)) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the adapter has not taken the policy over: %w: %s", context.Cause(ctx), d.log("adapter"))
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}

// hold shows a job that waits for a reason.
func (d *demo) hold(ctx context.Context) error {
	d.say("A freeze: the job is held, and says why",
		"The adapter answers Hold. The check stays Pending with the reason, a condition says since when and until when,",
		"and the job has an event. Were others waiting for its quota, it would be given to them after a minute.")
	if err := d.c.Apply(ctx, fmt.Sprintf(trainJob, patient, "", 1)); err != nil {
		return err
	}
	if err := d.await(ctx, "True", "-n", "research", "get", "workloads", "-o",
		`jsonpath={.items[?(@.metadata.ownerReferences[0].name=="`+patient+`")].status.conditions[?(@.type=="dispatch.phpboyscout.uk/Held")].status}`); err != nil {
		return err
	}
	if err := d.workloads(ctx); err != nil {
		return err
	}
	if err := d.awaitEvent(ctx, patient, "HookHeld"); err != nil {
		return err
	}
	return d.events(ctx, patient, "HookHeld")
}

// letGo shows the end of a hold.
func (d *demo) letGo(ctx context.Context) error {
	d.say("The freeze is over: admitted, and placed",
		"The rule is gone, and the adapter is asked again by itself. Now it answers with a node selector, which the pods get.")
	if err := d.setPolicy(ctx, lasts); err != nil {
		return err
	}
	if err := d.await(ctx, "Running", "-n", "research", "get", "pods", "-l", "jobset.sigs.k8s.io/jobset-name="+patient, "-o", "jsonpath={.items[*].status.phase}"); err != nil {
		return err
	}
	if err := d.workloads(ctx); err != nil {
		return err
	}
	return d.kubectl(ctx, "-n", "research", "get", "pods", "-l", "jobset.sigs.k8s.io/jobset-name="+patient, "-o",
		"custom-columns=POD:.metadata.name,PHASE:.status.phase,NODE-SELECTOR:.spec.nodeSelector")
}

// refuse shows a job that the policy does not take.
func (d *demo) refuse(ctx context.Context) error {
	d.say("A job that the policy refuses",
		"It fails for good. Kueue overwrites the message of a rejected check, so the reason is kept in a",
		"condition of the Workload, and told by an event on the Workload and on the job.")
	if err := d.kubectl(ctx, "-n", "research", "delete", "trainjob", patient); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "-n", "research", "delete", "trainjob", ours); err != nil {
		return err
	}
	if err := d.c.Apply(ctx, fmt.Sprintf(trainJob, large, "", 3)); err != nil {
		return err
	}
	if err := d.awaitEvent(ctx, large, "HookRefused"); err != nil {
		return err
	}
	if err := d.events(ctx, large, "HookRefused"); err != nil {
		return err
	}
	return d.kubectl(ctx, "-n", "research", "get", "workloads", "-o", "custom-columns=TRAINJOB:.metadata.ownerReferences[0].name,ACTIVE:.spec.active,"+
		`REFUSED:.status.conditions[?(@.type=="dispatch.phpboyscout.uk/Refused")].message`)
}

// eventsOf selects the events of a reason about a TrainJob.
func eventsOf(job, reason string) []string {
	return []string{"-n", "research", "get", "events", "--field-selector",
		"involvedObject.kind=TrainJob,involvedObject.name=" + job + ",reason=" + reason}
}

func (d *demo) awaitEvent(ctx context.Context, job, reason string) error {
	return d.await(ctx, reason, append(eventsOf(job, reason), "-o", "jsonpath={.items[0].reason}")...)
}

func (d *demo) events(ctx context.Context, job, reason string) error {
	return d.kubectl(ctx, append(eventsOf(job, reason), "-o", "custom-columns=ON:.involvedObject.kind,REASON:.reason,MESSAGE:.message")...)
}
