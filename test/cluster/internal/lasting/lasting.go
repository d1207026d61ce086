// Package lasting runs functions on a thread that lasts as long as the process.
package lasting

import (
	"runtime"
	"sync"
)

// Do runs f on a thread that lives as long as this process, and returns its
// error. Start processes with a parent-death signal in f: that signal is tied to
// the thread that started the process, and Go ends threads. What f changes of
// the thread, such as its namespaces, stays for the next call.
func Do(f func() error) error {
	result := make(chan error)
	spawner() <- func() { result <- f() }
	return <-result
}

var spawner = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread stays
		for f := range work {
			f()
		}
	}()
	return work
})
