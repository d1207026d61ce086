package gate

import (
	"time"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hold"
)

// Check is what the gate knows of one AdmissionCheck of ours.
type Check struct {
	// Broken says why Workloads cannot be served through this check; empty if
	// they can.
	Broken string
	// Policy is what the check's AdmissionGate says; nil for the plain
	// readmission gate.
	Policy *Policy
}

// hook is the hook policy of a check; nil if it asks no hook.
func (c Check) hook() *HookPolicy {
	if c.Policy == nil {
		return nil
	}
	return c.Policy.Hook
}

// Policy is what an AdmissionGate says, as far as decisions need it.
type Policy struct {
	// Name is the gate's.
	Name string
	// Version changes whenever the gate does.
	Version string
	// WaitForPods keeps the check Pending while pods of an earlier start are
	// left, for PodTimeout at most.
	WaitForPods bool
	PodTimeout  time.Duration
	// EvictUngated has Kueue evict a job that it started ungated.
	EvictUngated bool
	// Hook is nil without a hook.
	Hook *HookPolicy
}

// HookPolicy says what becomes of a hook's answers.
type HookPolicy struct {
	// FailOpen admits when there is no verdict.
	FailOpen bool
	// Audit records the answer and admits.
	Audit bool
	Terms hold.Terms
}

// Question is one offer of a Workload to a hook.
type Question struct {
	// Check is whose hook is to be asked, Policy what its gate says.
	Check  kueue.AdmissionCheckReference
	Policy *Policy
	// Offer identifies the offer. An answer to another one does not count.
	Offer string
	// TryNumber is the A that this start would get; for jobs that are not
	// dispatch's, the number of the start as far as Kueue has counted.
	TryNumber int
	// HeldSince is when a hook first held the job; zero if none did. OfferCount
	// counts this offer in.
	HeldSince  time.Time
	OfferCount int
}

// Answer is what came of a question.
type Answer struct {
	// Offer is the one that was asked about.
	Offer string
	// Decision is the hook's, if there is a Verdict.
	Decision admission.Decision
	Verdict  bool
	// Problem says why there is no verdict, in words for the job's owner; empty
	// if that is not for the owner to know.
	Problem string
	// Slow says that nothing came yet, for SlowAnswer at least.
	Slow bool
}

// ChoosesMetadata tells whether the hook chose labels or annotations.
func (a Answer) ChoosesMetadata() bool {
	c, _ := a.Decision.Changes()
	return len(c.Labels)+len(c.Annotations) > 0
}

// SlowAnswer is how long an answer may be on its way before the check says so.
const SlowAnswer = 2 * time.Second

// Remains are what is left of the earlier starts of a TrainJob.
type Remains struct {
	// Known is false while that is not known yet.
	Known bool
	// Stopped tells that no pod can appear any more: the JobSet and each of its
	// Jobs are suspended, and their controllers have taken note.
	Stopped bool
	// Pods has, for each admission count, how many pods are neither Succeeded
	// nor Failed. Zero stands for pods without a count.
	Pods map[int64]int
}

// Told is something to tell the people whose job it is, once.
type Told struct {
	Topic Topic
	// Check and Gate are what it is about.
	Check kueue.AdmissionCheckReference
	Gate  string
	// Text is for people.
	Text string
	// Decision is what an audited hook would have decided.
	Decision string
}

// Topic is what a Told is about.
type Topic string

// Topics.
const (
	ToldHeld       Topic = "HookHeld"
	ToldNoVerdict  Topic = "HookNoVerdict"
	ToldReleased   Topic = "HookReleased"
	ToldRefused    Topic = "HookRefused"
	ToldFailedOpen Topic = "HookFailedOpen"
	ToldAudited    Topic = "HookAudited"
	ToldPodTimeout Topic = "PodTimeout"
	ToldQuota      Topic = "QuotaReturned"
)

// offer identifies the next offer of an attempt to the hook of a gate.
func offer(a fence.Attempt, p *Policy, count int) string {
	return a.String() + "/" + p.Version + "/" + itoa(count)
}
