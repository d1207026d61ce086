package runner

import (
	"testing"
	"time"
)

// TestBreaker walks through a story of one breaker that opens after 2
// failures for 10 seconds.
func TestBreaker(t *testing.T) {
	type step struct {
		at     int          // seconds since the start
		allow  bool         // what Allow must say
		result Result       // of the call, if allowed
		state  BreakerState // after it
	}
	tests := map[string]struct {
		reason string
		steps  []step
	}{
		"InARow": {"only failures in a row count", []step{
			{0, true, Failure, BreakerClosed}, {0, true, Success, BreakerClosed}, {0, true, Failure, BreakerClosed}, {0, true, Failure, BreakerOpen},
		}},
		"Neither": {"what says nothing neither counts nor resets", []step{
			{0, true, Failure, BreakerClosed}, {0, true, Neither, BreakerClosed}, {0, true, Failure, BreakerOpen},
		}},
		"GoodProbe": {"a good probe closes it, with the count at zero", []step{
			{0, true, Failure, BreakerClosed}, {0, true, Failure, BreakerOpen}, {9, false, 0, BreakerOpen},
			{10, true, Success, BreakerClosed}, {10, true, Failure, BreakerClosed},
		}},
		"BadProbe": {"a bad probe opens it again", []step{
			{0, true, Failure, BreakerClosed}, {0, true, Failure, BreakerOpen}, {10, true, Failure, BreakerOpen}, {19, false, 0, BreakerOpen}, {20, true, Success, BreakerClosed},
		}},
		"EmptyProbe": {"a probe that says nothing is tried again at once", []step{
			{0, true, Failure, BreakerClosed}, {0, true, Failure, BreakerOpen}, {10, true, Neither, BreakerOpen}, {10, true, Success, BreakerClosed},
		}},
		"ClockBack": {"a clock that goes back begins a cool-down and no longer time", []step{
			{50, true, Failure, BreakerClosed}, {50, true, Failure, BreakerOpen}, {0, false, 0, BreakerOpen}, {9, false, 0, BreakerOpen}, {10, true, Success, BreakerClosed},
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := NewBreaker(BreakerConfig{Failures: 2, Cooldown: 10 * time.Second})
			for i, s := range tc.steps {
				now := time.Unix(int64(s.at), 0)
				ticket, ok := b.Allow(now)
				if ok != s.allow {
					t.Fatalf("%s: step %d allowed: %t", tc.reason, i, ok)
				}
				if ok {
					b.Done(ticket, s.result, now)
				}
				if state, _ := b.State(now); state != s.state {
					t.Fatalf("%s: step %d: %s, want %s", tc.reason, i, state, s.state)
				}
			}
		})
	}
}

func TestBreakerOneProbe(t *testing.T) {
	now := time.Unix(0, 0)
	b := NewBreaker(BreakerConfig{Failures: 1, Cooldown: time.Second})
	old, _ := b.Allow(now)
	first, _ := b.Allow(now)
	b.Done(first, Failure, now)
	now = now.Add(time.Second)
	probe, ok := b.Allow(now)
	if _, second := b.Allow(now); !ok || second {
		t.Errorf("first probe %t, second %t", ok, second)
	}
	b.Done(old, Success, now)
	if state, _ := b.State(now); state != BreakerProbe {
		t.Errorf("a call from before decided the probe: %s", state)
	}
	b.Done(probe, Success, now)
	if _, ok := b.Allow(now); !ok {
		t.Error("skipped after a good probe")
	}
}

func TestBreakerDefaults(t *testing.T) {
	now := time.Unix(0, 0)
	b := NewBreaker(BreakerConfig{})
	for range 5 {
		ticket, _ := b.Allow(now)
		b.Done(ticket, Failure, now)
	}
	if state, left := b.State(now.Add(time.Second)); state != BreakerOpen || left != 29*time.Second {
		t.Errorf("%s for %v after 5 failures", state, left)
	}
	if _, left := b.State(now.Add(-time.Hour)); left != 30*time.Second {
		t.Errorf("open for %v after the clock went back", left)
	}
	never := NewBreaker(BreakerConfig{Failures: -1})
	for range 100 {
		ticket, ok := never.Allow(now)
		if !ok {
			t.Fatal("a breaker that never opens did")
		}
		never.Done(ticket, Failure, now)
	}
}
