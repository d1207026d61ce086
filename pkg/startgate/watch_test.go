package startgate

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

func fromTeam() *admission.Request { return &admission.Request{Namespace: "team", LocalQueue: "lq"} }

// inBubble runs a story of a gate on a cluster by a clock that only moves when
// everybody waits.
func inBubble(t *testing.T, c func() *fakeCluster, story func(*testing.T, *fakeCluster, *Gate)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cluster := c()
		story(t, cluster, cluster.gate(ctx, t, Options{}))
		cancel()
		synctest.Wait()
	})
}

// admits fails the test unless the gate admits now.
func admits(t *testing.T, g *Gate, why string) {
	t.Helper()
	synctest.Wait()
	if d, err := g.Admit(t.Context(), fromTeam()); err != nil || d.Kind() != admission.KindAdmitWith {
		t.Errorf("%v, %v, want AdmitWith: %s", d, err, why)
	}
}

// holds fails the test unless the gate holds now, and says so.
func holds(t *testing.T, g *Gate, words, why string) {
	t.Helper()
	synctest.Wait()
	d, err := g.Admit(t.Context(), fromTeam())
	if reason, held := d.Held(); err != nil || !held || !strings.Contains(reason, words) {
		t.Errorf("%v, %v, want a hold with %q: %s", d, err, words, why)
	}
}

// TestLeaseOfASkewedHolder follows a controller through its life, whose clock goes
// wrong by up to five minutes.
func TestLeaseOfASkewedHolder(t *testing.T) {
	for _, skew := range []time.Duration{-5 * time.Minute, -20 * time.Second, 0, 20 * time.Second, 5 * time.Minute} {
		t.Run(skew.String(), func(t *testing.T) {
			begun := func() *fakeCluster {
				c := newFakeCluster()
				c.sources[leases].put(newLease("a", time.Now().Add(skew-time.Second)))
				return c
			}
			inBubble(t, begun, func(t *testing.T, c *fakeCluster, g *Gate) {
				synctest.Wait()
				if fresh := skew > -14*time.Second; fresh {
					admits(t, g, "it was renewed a second ago")
				} else {
					holds(t, g, "has not been seen renewed yet", "nobody knows yet")
					if err := g.Ready(); err == nil || !strings.Contains(err.Error(), "renewal") {
						t.Errorf("ready: %v", err)
					}
				}
				stop := c.renew(skew)
				admits(t, g, "it was renewed just now")
				if err := g.Ready(); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Hour)
				admits(t, g, "it has been renewed all the time")
				stop()
				time.Sleep(15*time.Second - time.Nanosecond)
				admits(t, g, "just before its end")
				time.Sleep(time.Nanosecond)
				holds(t, g, "has expired", "the controller has died")
				if err := g.Ready(); err != nil {
					t.Errorf("a gate that can say why it holds is ready: %v", err)
				}
				again := c.renew(skew)
				defer again()
				admits(t, g, "the controller is back")
			})
		})
	}
}

// TestLeaseOfADeadHolder: a gate that starts after the controller has died.
func TestLeaseOfADeadHolder(t *testing.T) {
	for _, died := range []time.Duration{time.Hour, 3 * time.Minute, 16 * time.Second, -4 * time.Minute} {
		t.Run(died.String(), func(t *testing.T) {
			dead := func() *fakeCluster {
				c := newFakeCluster()
				c.sources[leases].put(newLease("a", time.Now().Add(-died)))
				return c
			}
			inBubble(t, dead, func(t *testing.T, c *fakeCluster, g *Gate) {
				time.Sleep(15 * time.Second)
				holds(t, g, "has expired", "whatever it was taken for at first")
				if err := g.Ready(); err != nil {
					t.Error(err)
				}
				c.sources[leases].cut(nil)
				time.Sleep(time.Second)
				holds(t, g, "has expired", "reading it again is no renewal")
			})
		})
	}
}

// TestObjectsComeAndGo: what happens is known when the watch has told.
func TestObjectsComeAndGo(t *testing.T) {
	inBubble(t, newFakeCluster, func(t *testing.T, c *fakeCluster, g *Gate) {
		holds(t, g, "Lease dispatch-system/dispatch-admission does not exist", "nobody has made one")
		stop := c.renew(0)
		defer stop()
		admits(t, g, "all is well")

		c.sources[localQueues].drop(theLocalQueue())
		holds(t, g, "LocalQueue team/lq does not exist", "")
		c.sources[localQueues].put(theLocalQueue())
		admits(t, g, "it is back")

		stopped, policy := theClusterQueue(), kueue.HoldAndDrain
		stopped.Spec.StopPolicy = &policy
		c.sources[clusterQueues].put(stopped)
		holds(t, g, "ClusterQueue cq is stopped by stopPolicy HoldAndDrain", "")
		bare := theClusterQueue()
		bare.Spec.AdmissionChecksStrategy = nil
		c.sources[clusterQueues].put(bare)
		holds(t, g, "ClusterQueue cq names no AdmissionCheck", "")
		elsewhere := theClusterQueue()
		elsewhere.Spec.ResourceGroups[0].Flavors = elsewhere.Spec.ResourceGroups[0].Flavors[:1]
		c.sources[clusterQueues].put(elsewhere)
		holds(t, g, "ClusterQueue cq names no AdmissionCheck", "the check is for a flavor that the queue does not have")
		c.sources[clusterQueues].put(theClusterQueue())
		admits(t, g, "it is open")

		going, now := theCheck(), metav1.Now()
		going.DeletionTimestamp = &now
		c.sources[checks].put(going)
		holds(t, g, "AdmissionCheck ours is being deleted", "")
		foreign := theCheck()
		foreign.Spec.ControllerName = "example.com/other"
		c.sources[checks].put(foreign)
		holds(t, g, "ClusterQueue cq names no AdmissionCheck", "")
		c.sources[checks].put(theCheck())
		admits(t, g, "it is ours again")

		c.sources[leases].drop(newLease("a", time.Now()))
		holds(t, g, "Lease dispatch-system/dispatch-admission does not exist", "")
		time.Sleep(2 * time.Second)
		admits(t, g, "the controller makes it again")
	})
}

// TestWatchBroken: each watch breaks and stays broken, by either way to begin one.
func TestWatchBroken(t *testing.T) {
	for k := range kinds {
		for _, plain := range []bool{false, true} {
			name := kindNames[k]
			if plain {
				name += ", listed"
			}
			begun := func() *fakeCluster {
				c := newFakeCluster()
				c.sources[k].plain = plain
				return c
			}
			t.Run(name, func(t *testing.T) {
				inBubble(t, begun, func(t *testing.T, c *fakeCluster, g *Gate) { breakWatch(t, c, g, kind(k)) })
			})
		}
	}
}

func breakWatch(t *testing.T, c *fakeCluster, g *Gate, k kind) {
	stop := c.renew(0)
	defer stop()
	admits(t, g, "all is well")
	if got := c.sources[k].listed() > 0; got != c.sources[k].plain {
		t.Errorf("listed: %v, want %v", got, c.sources[k].plain)
	}
	for range 3 { // a watch that ends is how watches go
		c.sources[k].cut(nil)
		admits(t, g, "the watch has just ended")
		time.Sleep(time.Second)
		admits(t, g, "the watch runs again")
	}
	if strings.Contains(c.log.String(), "failed") {
		t.Errorf("a watch that ended by itself was called a failure: %s", c.log.String())
	}
	time.Sleep(2 * time.Second)
	c.sources[k].cut(errors.New("connection refused by 127.0.0.1:4711"))
	time.Sleep(13 * time.Second)
	admits(t, g, "what is known is new enough")
	time.Sleep(2 * time.Second)
	holds(t, g, kindNames[k]+" cannot be watched", "for longer than the Lease lasts nothing was seen")
	time.Sleep(time.Hour)
	holds(t, g, kindNames[k]+" cannot be watched", "still")
	if n := strings.Count(c.log.String(), "the watch has failed"); n != 1 {
		t.Errorf("one outage was logged %d times", n)
	}
	if err := g.Ready(); err != nil {
		t.Errorf("a gate that can say why it holds is ready: %v", err)
	}
	c.sources[k].cut(nil)
	time.Sleep(time.Second)
	admits(t, g, "the watch runs again")
	time.Sleep(10 * time.Second)
	c.sources[k].cut(errors.New("connection refused"))
	time.Sleep(10 * time.Second)
	c.sources[k].cut(nil)
	time.Sleep(10 * time.Second)
	for _, line := range []string{"the watch has failed", "the watch runs again"} {
		if n := strings.Count(c.log.String(), line); n != 2 {
			t.Errorf("of two outages %q was logged %d times: %s", line, n, c.log.String())
		}
	}
}

// TestMissedMeanwhile: what happened while nobody watched is known afterwards.
func TestMissedMeanwhile(t *testing.T) {
	inBubble(t, newFakeCluster, func(t *testing.T, c *fakeCluster, g *Gate) {
		stop := c.renew(0)
		defer stop()
		admits(t, g, "all is well")
		c.sources[checks].cut(errors.New("refused"))
		c.sources[checks].drop(theCheck())
		time.Sleep(time.Second)
		admits(t, g, "nobody can know")
		c.sources[checks].cut(nil)
		time.Sleep(time.Second)
		holds(t, g, "AdmissionCheck ours does not exist", "it went unseen")
	})
}

// TestNotAllowed: without a right the gate is not ready, holds, and says which.
func TestNotAllowed(t *testing.T) {
	limited := func() *fakeCluster {
		c := newFakeCluster()
		c.sources[clusterQueues].err = forbidden()
		return c
	}
	inBubble(t, limited, func(t *testing.T, c *fakeCluster, g *Gate) {
		stop := c.renew(0)
		defer stop()
		holds(t, g, "ClusterQueues cannot be watched, the API server forbids it: let the start gate list and watch them", "")
		if err := g.Ready(); err == nil || !strings.Contains(err.Error(), "ClusterQueues") {
			t.Errorf("ready: %v", err)
		}
		time.Sleep(time.Hour)
		if n := c.sources[clusterQueues].listed(); n > 800 {
			t.Errorf("asked %d times in an hour", n)
		}
		c.sources[clusterQueues].cut(nil)
		time.Sleep(6 * time.Second)
		admits(t, g, "the right was given")
	})
}

// TestLeaseGoneMeanwhile: the same for the Lease, which is no entry of a map.
func TestLeaseGoneMeanwhile(t *testing.T) {
	inBubble(t, newFakeCluster, func(t *testing.T, c *fakeCluster, g *Gate) {
		c.renew(0)()
		admits(t, g, "it was renewed")
		c.sources[leases].cut(errors.New("refused"))
		c.sources[leases].drop(newLease("a", time.Now()))
		// The refusal has to be seen. A watch that goes on where it was would be told of the
		// deletion by an API server, but not by this fake.
		time.Sleep(time.Second)
		c.sources[leases].cut(nil)
		time.Sleep(time.Second)
		holds(t, g, "does not exist", "it went unseen")
	})
}

// TestWholeStateNeverComes: a watch that has not told its first state tells nothing.
func TestWholeStateNeverComes(t *testing.T) {
	inBubble(t, newFakeCluster, func(t *testing.T, c *fakeCluster, g *Gate) {
		stop := c.renew(0)
		defer stop()
		admits(t, g, "all is well")
		c.sources[checks].stick()
		c.sources[checks].cut(errors.New("refused"))
		time.Sleep(time.Second)
		c.sources[checks].cut(nil)
		time.Sleep(10 * time.Second)
		admits(t, g, "what is known is new enough")
		time.Sleep(5 * time.Second)
		holds(t, g, "AdmissionChecks cannot be watched", "the watch has not told anything")
	})
}

// TestLateStop: the end of a watch says nothing about the next one.
func TestLateStop(t *testing.T) {
	w := newWorld("a/b", slog.New(slog.DiscardHandler))
	c := newFakeCluster()
	f := &feed{kind: checks, world: w, table: w.tables()[checks], source: c.sources[checks]}
	first, err := f.watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = f.watch(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	first.Stop()
	first.Stop()
	if !f.state().open {
		t.Error("the second watch is taken for ended")
	}
}

// TestStartingServer: an API server that starts forbids everything at first. That
// must not keep attempts waiting after it has read the roles.
func TestStartingServer(t *testing.T) {
	inBubble(t, newFakeCluster, func(t *testing.T, c *fakeCluster, g *Gate) {
		stop := c.renew(0)
		defer stop()
		admits(t, g, "all is well")
		for _, s := range c.sources {
			s.cut(forbidden())
		}
		time.Sleep(17 * time.Second)
		holds(t, g, "forbids it", "for too long")
		for _, s := range c.sources {
			s.cut(nil)
		}
		time.Sleep(time.Second)
		admits(t, g, "it has read the roles")
	})
}

func TestRunOnce(t *testing.T) {
	inBubble(t, newFakeCluster, func(t *testing.T, _ *fakeCluster, g *Gate) {
		synctest.Wait()
		if err := g.Run(t.Context()); err == nil {
			t.Error("it ran twice")
		}
	})
}

func TestServerClock(t *testing.T) {
	var c serverClock
	now := time.Now()
	if at := c.at(now); !at.IsZero() {
		t.Errorf("nobody has told, but it is %s", at)
	}
	date := now.Add(-time.Hour).Truncate(time.Second)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Date"] = []string{date.UTC().Format(http.TimeFormat)}
		if r.URL.Path == "/none" {
			w.Header()["Date"] = nil
		}
	}))
	defer server.Close()
	client := &http.Client{Transport: c.read(http.DefaultTransport)}
	for _, path := range []string{"/", "/none"} {
		answer, err := client.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if off := c.at(time.Now()).Sub(date); off < 0 || off > 10*time.Second {
			t.Errorf("after %s: off by %s", path, off)
		}
		if off := c.at(time.Now().Add(time.Hour)).Sub(date.Add(time.Hour)); off < 0 || off > 10*time.Second {
			t.Errorf("an hour after %s: off by %s", path, off)
		}
	}
}
