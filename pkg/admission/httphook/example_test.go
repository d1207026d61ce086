package httphook_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

// A hook is served, and asked over the wire.
func Example() {
	hook := admission.HookFunc(func(_ context.Context, req *admission.Request) (admission.Decision, error) {
		return admission.Refuse("no room for " + req.TaskID), nil
	})
	server := httptest.NewServer(httphook.Handler(hook))
	defer server.Close()

	client, err := httphook.NewClient(httphook.Config{URL: server.URL})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fmt.Println(client.Admit(ctx, &admission.Request{TaskID: "node"}))
	// Output: Refuse {"decision":"Refuse","reason":"no room for node"} <nil>
}

// The kind of an error says why there is no verdict.
func ExampleKindOf() {
	client, err := httphook.NewClient(httphook.Config{UnixSocket: "/no/such/socket"})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = client.Admit(context.Background(), &admission.Request{})
	fmt.Println(httphook.KindOf(err))
	// Output: Connection
}
