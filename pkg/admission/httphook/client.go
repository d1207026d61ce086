package httphook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// maxQuoted is how much of an error answer is quoted, in bytes.
const maxQuoted = 512

// Client is a hook that asks a server. It may be used by many goroutines.
type Client struct {
	url       string
	transport *http.Transport
}

var _ admission.Hook = (*Client)(nil)

// NewClient returns a client for the server that c names. It does not connect.
// The error names the field of c that is wrong.
func NewClient(c Config) (*Client, error) {
	base, err := c.base()
	if err != nil {
		return nil, err
	}
	transport, err := c.transport(base.Scheme == "http" && c.UnixSocket == "")
	if err != nil {
		return nil, err
	}
	return &Client{url: base.JoinPath(Path).String(), transport: transport}, nil
}

// Admit asks the server and waits until ctx is done, for [DefaultTimeout] when
// ctx has no deadline. A request that breaks on a connection that was idle is
// sent again, once, because a hook is idempotent. Every error is an [*Error].
//
// Changes come as the server sent them: whoever does not pass them on to a
// caller that checks must call [admission.Decision.Validate].
func (c *Client) Admit(ctx context.Context, req *admission.Request) (admission.Decision, error) {
	body, err := encodeRequest(req)
	if err != nil {
		return admission.Decision{}, &Error{KindRequest, 0, fmt.Errorf("the request: %w", err)}
	}
	answer, e := c.exchange(ctx, body)
	if e != nil {
		return admission.Decision{}, e
	}
	var d admission.Decision
	if err := d.UnmarshalJSON(answer); err != nil {
		return admission.Decision{}, decisionError(err)
	}
	return d, nil
}

// encodeRequest leaves <, > and & alone, which json.Marshal would make six
// bytes each.
func encodeRequest(req *admission.Request) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(req); err != nil {
		return nil, err
	}
	body := bytes.TrimSuffix(out.Bytes(), []byte("\n"))
	if len(body) > MaxBytes {
		return nil, fmt.Errorf("%d bytes, more than %d", len(body), MaxBytes)
	}
	return body, nil
}

// Close closes idle connections. The client may be used again.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// URL returns where the server is asked. For a Unix socket its host is
// "localhost".
func (c *Client) URL() string { return c.url }

// Transport sends any other request, such as one for a health check or a
// test, over the connections of c.
func (c *Client) Transport() http.RoundTripper { return c.transport }

// exchange sends a body and returns the body of a proper answer.
func (c *Client) exchange(ctx context.Context, body []byte) ([]byte, *Error) {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultTimeout)
		defer cancel()
	}
	req, err := c.newRequest(ctx, body)
	if err != nil {
		return nil, &Error{KindRequest, 0, err}
	}
	// The transport by itself follows no redirects and keeps no cookies.
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return nil, transportError(ctx, 0, err)
	}
	defer resp.Body.Close()
	return readAnswer(ctx, resp)
}

func (c *Client) newRequest(ctx context.Context, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body)) //nolint:gosec // the operator chose the URL
	if err != nil {
		return nil, err
	}
	req.GetBody = onceMore(body)
	deadline, _ := ctx.Deadline()
	req.Header = http.Header{
		"Content-Type":  {contentType},
		"Accept":        {contentType},
		"User-Agent":    {"dispatch-admission"},
		TimeoutHeader:   {strconv.FormatInt(milliseconds(time.Until(deadline)), 10)},
		idempotencyMark: {},
	}
	return req, nil
}

// idempotencyMark is not sent, having no value. It lets the transport repeat a
// request when the server closed an idle connection just before.
const idempotencyMark = "Idempotency-Key"

var errBrokeTwice = errors.New("two connections in a row broke")

// onceMore gives the transport the body for one repetition. Without that limit
// it would try each idle connection, and a server that breaks them after
// reading would be asked as often.
func onceMore(body []byte) func() (io.ReadCloser, error) {
	repeated := false // the transport asks from one goroutine
	return func() (io.ReadCloser, error) {
		if repeated {
			return nil, errBrokeTwice
		}
		repeated = true
		return io.NopCloser(bytes.NewReader(body)), nil
	}
}

// maxTimeout is the most that the timeout header can say.
const maxTimeout = math.MaxUint32 * time.Millisecond

// milliseconds rounds up: a hook that gives up a moment before its caller
// would answer with an error of its own.
func milliseconds(left time.Duration) int64 {
	return max(1, (min(left, maxTimeout) + time.Millisecond - 1).Milliseconds())
}

func readAnswer(ctx context.Context, resp *http.Response) ([]byte, *Error) {
	if resp.StatusCode != http.StatusOK {
		return nil, statusError(resp)
	}
	if err := checkContentType(resp.Header.Get("Content-Type")); err != nil {
		return nil, &Error{KindContentType, resp.StatusCode, err}
	}
	if resp.ContentLength > MaxBytes {
		return nil, &Error{KindTooLarge, resp.StatusCode, fmt.Errorf("the answer has %d bytes, more than %d", resp.ContentLength, MaxBytes)}
	}
	body, err := readAll(io.LimitReader(resp.Body, MaxBytes+1), resp.ContentLength)
	switch {
	case err != nil:
		return nil, transportError(ctx, resp.StatusCode, fmt.Errorf("the answer: %w", err))
	case len(body) > MaxBytes:
		return nil, &Error{KindTooLarge, resp.StatusCode, fmt.Errorf("the answer has more than %d bytes", MaxBytes)}
	}
	return body, nil
}

// readAll is io.ReadAll with room for what the other side says it will send,
// within reason.
func readAll(r io.Reader, length int64) ([]byte, error) {
	room := min(max(length, 0), 64<<10) + bytes.MinRead
	buf := bytes.NewBuffer(make([]byte, 0, room))
	_, err := buf.ReadFrom(r)
	return buf.Bytes(), err
}

// statusError quotes the beginning of the body. A longer body costs the
// connection, which is what it should cost.
func statusError(resp *http.Response) *Error {
	err := fmt.Errorf("status %d", resp.StatusCode)
	if quote, _ := io.ReadAll(io.LimitReader(resp.Body, maxQuoted)); len(quote) > 0 {
		err = fmt.Errorf("status %d: %q", resp.StatusCode, quote)
	}
	kind := KindStatus
	if resp.StatusCode == http.StatusGatewayTimeout {
		kind = KindTimeout
	}
	return &Error{kind, resp.StatusCode, err}
}

// checkContentType accepts JSON, with no charset or the only one that JSON has.
func checkContentType(value string) error {
	media, params, err := mime.ParseMediaType(value)
	if charset, given := params["charset"]; err == nil && media == contentType &&
		(!given || strings.EqualFold(charset, "utf-8")) {
		return nil
	}
	return fmt.Errorf("content type %q is not %s", value, contentType)
}
