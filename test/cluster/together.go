package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// together runs the jobs side by side, all to their end, and joins their errors.
func together(jobs ...func() error) error {
	errs := make([]error, len(jobs))
	var wg sync.WaitGroup
	for i, job := range jobs {
		wg.Go(func() { errs[i] = job() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// firstError runs the jobs side by side. The first error cancels the others and
// is returned when all have ended.
func firstError(ctx context.Context, jobs ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var first error
	var once sync.Once
	var wg sync.WaitGroup
	for _, job := range jobs {
		wg.Go(func() {
			if err := job(ctx); err != nil {
				once.Do(func() { first = err; cancel(err) })
			}
		})
	}
	wg.Wait()
	return first
}

// poll calls check until it returns nil or the context ends.
func poll(ctx context.Context, what string, check func(context.Context) error) error {
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last: %w", what, context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
