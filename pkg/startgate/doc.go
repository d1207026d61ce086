// Package startgate is the start gate: a hook that a workflow server asks before
// it creates work at all. It holds an attempt while the work could not be
// admitted, because the admission controller is away or the queue is closed, and
// then asks the policy that it wraps.
//
// A server embeds it, or asks an adapter that does and serves it over HTTP. Work
// that is created while nobody can admit it would only wait in the cluster, where
// it is harder to see why and harder to take back.
//
// # What holds
//
//   - The leader election Lease of the admission controller does not exist, has no
//     holder, or has expired.
//   - The LocalQueue or its ClusterQueue does not exist, is being deleted, is
//     stopped by its stopPolicy, or is not active. What Kueue says is passed on.
//   - A check that the ClusterQueue names does not exist, or is one of ours and is
//     being deleted or not active. Kueue itself does not notice a check that is
//     being deleted: its queue stays active, and jobs wait in it for ever.
//   - The ClusterQueue names no check of ours, so that its jobs would start without
//     being gated. A check that is limited by onFlavors counts if it names at least
//     one flavor that the queue has: the limit is the operator's choice, and which
//     flavor an attempt gets is not known before it has quota. If it gets another
//     one, it starts ungated, as chosen.
//   - One of the above cannot be known: nothing has been read yet, or a watch has
//     been broken for longer than the Lease lasts.
//
// All reasons that apply are told at once, sorted, each with the name of the object
// and the way out. They change only when the cause does. Whether there is quota,
// and whether the queue accepts the namespace, is Kueue's to decide later.
//
// A check of ours is an AdmissionCheck whose spec.controllerName is
// [v1alpha1.ControllerName], whatever its name is.
//
// # How current it is
//
// Everything is read from four watches: an attempt costs no request. What happens
// in the cluster counts as soon as the watch tells, in milliseconds as a rule.
//
// Whether the Lease has expired is measured, not computed from clocks that may
// differ by minutes: it has when its holder has not been seen to renew it for as
// long as the Lease says. Only what happened before the gate looked is dated, by
// the clock of the API server. If that leaves it open whether the holder lives,
// the gate holds until the next renewal, which takes two seconds by default; then
// and before the watches have begun, [Gate.Ready] says what is missing. A
// controller that has died is noticed when its Lease runs out, like by every
// candidate of the election.
//
// # The policy and its answer
//
// The policy is asked when nothing holds, under the context of the caller. It is
// told where the attempt would queue. Its changes must be valid, with no reserved
// key, like those of every hook.
//
// Then the gate itself adds the label [QueueLabel], by which Kueue queues the job.
// That key is reserved: the rule is for what an operator's hook returns, not for
// what the gate answers. So [admission.Decision.Validate] refuses the answer of a
// gate as it stands, and whoever got it from elsewhere and wants to validate it
// takes the label out first. For the same reason a runner that validates goes
// between the gate and the policy, not around the gate.
//
// # Rights
//
// The gate needs exactly these, and no right to write. In the namespace of the
// Lease, by a Role:
//
//	apiGroups: [coordination.k8s.io]
//	resources: [leases]
//	resourceNames: [dispatch-admission]
//	verbs: [list, watch]
//
// and for the whole cluster, by a ClusterRole:
//
//	apiGroups: [kueue.x-k8s.io]
//	resources: [localqueues, clusterqueues, admissionchecks]
//	verbs: [list, watch]
//
// It needs Kueue v0.17 or newer.
//
// # Dependencies
//
// Beside the hook contract: the REST client and the reflector of client-go, and
// the API types of Kueue. No generated clientset, no controller-runtime.
package startgate
