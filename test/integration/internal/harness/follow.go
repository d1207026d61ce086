package harness

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Follow calls see, one after the other, with what the API server tells of the objects
// of a namespace, until the cleanups of the test. The list says of which kind.
func Follow[T client.Object](tb testing.TB, api client.WithWatch, list client.ObjectList, namespace string, see func(watch.EventType, T)) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	events, err := api.Watch(ctx, list, client.InNamespace(namespace))
	if err != nil {
		cancel()
		tb.Fatal(err)
	}
	tb.Cleanup(cancel)
	go func() {
		for e := range events.ResultChan() {
			if o, ok := e.Object.(T); ok {
				see(e.Type, o)
			}
		}
	}()
}
