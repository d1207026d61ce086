// Package admission is the contract between dispatch-admission and the code
// of a cluster operator that decides whether a piece of training work may
// start. It uses the standard library only.
//
// A hook is one function:
//
//	func(ctx context.Context, req *admission.Request) (admission.Decision, error)
//
// # When a hook is called
//
// Once for every attempt: after the queue has reserved quota for a job and
// before any of its pods exists. An evicted job that comes back is a new
// attempt and is asked about again. A held attempt is offered again later,
// with Request.OfferCount raised by one. A workflow server may ask the same
// hook before it creates the work at all; what is not known yet, such as the
// queue, is empty then.
//
// A call may be repeated: a controller that restarts, or a connection that
// breaks, leads to a second call about the same attempt. A hook must
// therefore be idempotent. Whatever it books, it should book under TenantID,
// DagID, RunID, TaskID and TryNumber together, so that the second booking is
// the first one again. Calls run concurrently.
//
// # Deadline
//
// The context has a deadline, 2 seconds unless the operator chose another.
// The caller stops waiting when it passes. A hook must return once the
// context is done; one that does not runs on in the background, its answer is
// dropped, and the caller counts it. A hook must not keep req after it has
// returned. It may change req: req is a copy, so changes have no effect.
//
// # What each decision does
//
//   - [Admit] starts the work unchanged. The zero Decision is Admit.
//   - [AdmitWith] starts it with the given [Changes].
//   - [Hold] and [HoldUntil] keep it waiting. It is offered again later,
//     with HoldUntil not before the given time. Holding is not a failure: it
//     never fails open, and it never counts toward skipping the hook.
//   - [Refuse] fails it for good, without retries. The reason is shown to the
//     owner of the job.
//
// An error is none of these. It says that the hook is broken: there is no
// verdict. So do a panic, a passed deadline, an answer that cannot be read
// and Changes that are not allowed. An attempt without a verdict is held too,
// with a general message to the owner of the job and the details in the log,
// unless the operator chose to fail open. After several failures in a row the
// hook is skipped for a while, then tried with a single call. What concerns one
// request alone, such as Changes that are not allowed or a request that is too
// large to send, does not count toward that. Return Hold, not an error, for
// "not now"; return Refuse, not an error, for "never".
//
// # What a hook is told
//
// [Request] describes the attempt: identity, images, resources, placement,
// queue. It never carries the environment of the task, its source, secrets or
// tokens.
//
// # What a hook may change
//
// Only what [Changes] can say, and only within these limits: labels and
// annotations must not use a reserved key ([IsReservedKey]), keys and values
// follow the Kubernetes syntax, at most [MaxTolerations] tolerations are
// added, and a priority class or a service account must be on the operator's
// allowlist when there is one. [Changes.Validate] checks all of it except the
// allowlist, which a hook does not know. Images, commands, environment,
// namespace and resources cannot be changed: they are what the quota was
// reserved for.
//
// # Other languages, and tests
//
// Package httphook serves a hook over HTTP and calls one that is served
// elsewhere. Package hooktest holds a conformance suite for hooks and servers
// in any language, and a scripted fake.
//
// # Versions
//
// A patch release changes nothing that compiles or travels on the wire. A
// minor release may add fields, methods and functions, so use keyed literals,
// and ignore JSON fields that you do not know. What a name or a field means
// never changes; a wire that has to change gets a new path beside /v1.
package admission
