package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// pollEvery is how often Within tries.
const pollEvery = 50 * time.Millisecond

// Within tries something until it works, but no longer than limit, nor after ctx has
// ended. The error then says what it was that did not happen, and the last one of try.
func Within(ctx context.Context, limit time.Duration, what string, try func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := try()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %s: %w", what, limit, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w; last: %w", what, ctx.Err(), err)
		case <-time.After(pollEvery):
		}
	}
}

// Show renders a value for the message of a test.
func Show(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}
