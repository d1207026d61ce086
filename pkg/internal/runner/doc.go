// Package runner asks a hook and says what came of it.
//
// A hook is code of others: it may be slow, hang, panic, or answer what is not
// allowed. [Runner.Ask] turns every one of these into an [Outcome] within the
// deadline, and [Resolve] turns an Outcome into the decision that holds. What
// the hook said and what happened when it was asked are different types, so
// "refused" is never confused with "did not answer".
package runner
