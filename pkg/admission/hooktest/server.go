package hooktest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

// RunServer runs the suite against the server that config names, with one
// subtest per check: first those of [Run] that say something about a server,
// through a client, then the wire itself.
func RunServer(t *testing.T, config httphook.Config, options ...Options) {
	t.Helper()
	results, err := CheckServer(t.Context(), config, last(options))
	if err != nil {
		t.Fatal(err)
	}
	report(t, results)
}

// CheckServer is [RunServer] without package testing. The error says what is
// wrong with config, or that nothing listens there.
func CheckServer(ctx context.Context, config httphook.Config, options Options) ([]Result, error) {
	client, err := httphook.NewClient(config)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	options = last([]Options{options})
	s := serverSuite{client, options}
	if err := s.connects(ctx); err != nil {
		return nil, err
	}
	// What a client does when its context ends or its request changes says
	// nothing about the server.
	hook := suite{client, options}
	return runAll(ctx, []check{
		{"answers every request", hook.answers},
		{"may be asked twice", hook.repeats},
		{"may be asked by many at once", hook.concurrent},
		{"answers in known fields only", s.knownFields},
		{"ignores fields of a later version", s.laterFields},
		{"reads a content type with a charset", s.charset},
		{"answers POST only", s.method},
		{"answers other paths with an error", s.otherPath},
		{"answers what is no request with an error", s.malformed},
		{"answers more than 1 MiB with an error", s.tooLarge},
		{"still answers after that", hook.answers},
	}), nil
}

type serverSuite struct {
	client *httphook.Client
	Options
}

// connects fails when no connection comes about; every check would say so.
func (s serverSuite) connects(ctx context.Context) error {
	_, _, err := s.send(ctx, post{method: http.MethodGet})
	if dial := dialError(err); dial != nil {
		return fmt.Errorf("cannot connect: %w", dial)
	}
	return nil
}

// dialError returns why no connection came about, nil if one did.
func dialError(err error) error {
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "dial" {
		return e
	}
	return nil
}

// post is a request to the server; zero fields mean the proper ones.
type post struct {
	method, url, kind string
	body              []byte
}

// send returns the status and the body. It tells the server no timeout, which
// a server must not depend on.
func (s serverSuite) send(ctx context.Context, p post) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, or(p.method, http.MethodPost), or(p.url, s.client.URL()), bytes.NewReader(p.body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", or(p.kind, "application/json"))
	resp, err := s.client.Transport().RoundTrip(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, httphook.MaxBytes+1))
	return resp.StatusCode, body, err
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// wantAnswer wants a decision.
func (s serverSuite) wantAnswer(ctx context.Context, p post) ([]byte, error) {
	status, body, err := s.send(ctx, p)
	switch {
	case err != nil:
		return nil, err
	case status != http.StatusOK:
		return nil, fmt.Errorf("status %d instead of 200: %.200q", status, body)
	}
	return body, new(admission.Decision).UnmarshalJSON(body)
}

// wantError wants a status that no reader takes for a decision. Hanging up is
// as good when hangUp is set, but saying nothing is not.
func (s serverSuite) wantError(ctx context.Context, p post, hangUp bool) error {
	status, body, err := s.send(ctx, p)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within %v: %w", s.Timeout, err)
	case err != nil && hangUp && dialError(err) == nil && ctx.Err() == nil:
		return nil
	case err != nil:
		return err
	case status < 400 || status > 599:
		return fmt.Errorf("status %d instead of 400 to 599: %.200q", status, body)
	}
	return nil
}

// eachBody goes through the samples as JSON.
func (s serverSuite) eachBody(f func(body []byte) error) error {
	return suite{nil, s.Options}.eachSample(func(req *admission.Request) error {
		body, err := json.Marshal(req)
		if err != nil {
			return err
		}
		return f(body)
	})
}

// knownFields finds a misspelt field, also one in another letter case. Readers
// ignore it, so nothing else would tell.
func (s serverSuite) knownFields(ctx context.Context) error {
	return s.eachBody(func(body []byte) error {
		answer, err := s.wantAnswer(ctx, post{body: body})
		if err != nil {
			return err
		}
		if err := knownFields(answer); err != nil {
			return fmt.Errorf("%w: %.200s", err, answer)
		}
		return nil
	})
}

func (s serverSuite) laterFields(ctx context.Context) error {
	return s.eachBody(func(body []byte) error {
		body = append([]byte(`{"fieldOfALaterVersion":{"list":[1,null,"a"]},`), body[1:]...)
		_, err := s.wantAnswer(ctx, post{body: body})
		return err
	})
}

func (s serverSuite) charset(ctx context.Context) error {
	return s.eachBody(func(body []byte) error {
		_, err := s.wantAnswer(ctx, post{kind: "application/json; charset=utf-8", body: body})
		return err
	})
}

func (s serverSuite) method(ctx context.Context) error {
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
		if err := s.wantError(ctx, post{method: method, body: []byte("{}")}, false); err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
	}
	return nil
}

func (s serverSuite) otherPath(ctx context.Context) error {
	base := strings.TrimSuffix(s.client.URL(), httphook.Path)
	for _, path := range []string{"/v2/admit", "/v1/other"} {
		if err := s.wantError(ctx, post{url: base + path, body: []byte("{}")}, false); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func (s serverSuite) malformed(ctx context.Context) error {
	for _, body := range []string{``, `{`, `[]`, `null`, `"Admit"`, `{"taskID":"a"}}`} {
		if err := s.wantError(ctx, post{body: []byte(body)}, false); err != nil {
			return fmt.Errorf("body %q: %w", body, err)
		}
	}
	return nil
}

func (s serverSuite) tooLarge(ctx context.Context) error {
	body := fmt.Appendf(nil, `{"image":%q}`, strings.Repeat("x", httphook.MaxBytes))
	return s.wantError(ctx, post{body: body}, true)
}
