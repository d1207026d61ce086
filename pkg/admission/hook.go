package admission

import "context"

// Hook decides whether an attempt may start.
//
// Admit is called once per attempt with a deadline on ctx, from several
// goroutines at the same time, and now and then a second time about the same
// attempt. It must return once ctx is done: the caller stops waiting then and
// drops a later answer. It must not keep req after it has returned; changing
// req has no effect.
//
// A non-nil error means that the hook is broken, and the Decision beside it is
// ignored. To make work wait return [Hold], to fail it return [Refuse].
type Hook interface {
	Admit(ctx context.Context, req *Request) (Decision, error)
}

// HookFunc is a function that is a [Hook].
type HookFunc func(ctx context.Context, req *Request) (Decision, error)

var _ Hook = HookFunc(nil)

// Admit calls f.
func (f HookFunc) Admit(ctx context.Context, req *Request) (Decision, error) {
	return f(ctx, req)
}
