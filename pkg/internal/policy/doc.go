// Package policy decides about requests by rules that an operator wrote down,
// the language of docs/policy.md.
//
// Everything that can be wrong with a policy is found when it is loaded: fields
// and types against those of [admission.Request], values that a job may not
// have, keys that a hook must not set, windows that never open, expressions
// that cost too much. [Load] reports all of it at once, each with its line. What
// is left for [Policy.Decide] is what only a request can bring about.
//
// The package is pure. A decision depends on the policy, the request and the
// time that it is given, and on nothing else.
package policy
