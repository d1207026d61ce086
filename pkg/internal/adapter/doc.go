// Package adapter serves a hook to its callers: the controller, and whoever
// asks before it creates work. It is dispatch-hook without its command line.
//
// One file configures it. What the file says about the policy, and what the
// files with certificates hold, is read again when it changes; what is broken
// then changes nothing and is told. Where to listen stays as it was at the
// start.
//
// The adapter bounds everything that a caller can make it hold: the size of a
// request, its time, connections, and requests at once. The last bound is high
// and no limit of the rate. It is there because a hook that never returns would
// else collect requests until the process is killed, and with it the requests
// that were fine. A listener has its own, so that callers from the network
// cannot take the socket's.
package adapter
