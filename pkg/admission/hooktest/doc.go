// Package hooktest tests hooks.
//
// [Run] is a conformance suite for a hook in Go, [RunServer] for a server in
// any language, and [Main] is the same as a command. They ask the hook about
// samples of real requests and check what package admission asks of every
// hook, whatever its policy is: it answers in time, may be asked twice and by
// many at once, returns when its context is done, keeps no request, and
// answers only what is valid and fits the wire. Run them with the race
// detector. For a server, what only its client can do is left out, and the
// wire itself comes on top.
//
// [Fake] is a hook that follows a script, for tests of code that asks hooks.
package hooktest
