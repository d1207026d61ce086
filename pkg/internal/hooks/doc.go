// Package hooks asks the hooks of AdmissionGates in the background.
//
// A reconciler must not wait for a hook: one that hangs for its whole timeout on
// every call would take all workers, and with them every Workload of every gate.
// So [Hooks.Ask] returns at once, each gate has a pool of its own, and whoever
// asked is told when there is something to read. Questions of one gate are asked
// in the order in which they came, some at a time; a question that waits costs
// memory and no goroutine, and its deadline begins with its call.
//
// A question is about one offer of a Workload to one check. Its answer is kept
// until somebody drops it, asks about another offer, or the hook of the gate
// changes: an answer of another hook, or one that was given under other rules,
// is worth nothing.
//
// The package reads and writes nothing in the cluster; what it needs from there
// it gets by functions.
package hooks
