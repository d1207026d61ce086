// Package cluster runs a real Kubernetes control plane with Kueue, JobSet and
// Trainer as plain processes on loopback, so that tests meet the real webhooks,
// the real RBAC and the real scheduler instead of fakes.
//
// Every program is a Go main that this module's go.mod pins. Build compiles them
// once into a per-user cache; Start brings up a cluster of its own ports,
// certificates and directory, so that several can run side by side:
//
//	c, err := cluster.Start(ctx, cluster.Config{Dir: t.TempDir()})
//	if err != nil {
//		t.Fatal(err)
//	}
//	t.Cleanup(func() { _ = c.Stop() })
//
// Nodes are simulated by kwok: pods are scheduled, run and end, but no container
// is started. The annotations RunAfter, CompleteAfter, FailAfter and
// TerminateAfter script the life of a pod. With Config.Node there is one real node
// instead, on which pods run as containers; CheckNode tells whether this machine
// has what that takes.
//
// Processes are only ever ended by a recorded pid whose executable and start time
// still match. The package needs Linux (/proc and parent-death signals).
package cluster
