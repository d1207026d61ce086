package hooks

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/runner"
)

// maxText is well below what the status of a gate takes.
const maxText = 512

// why says in words that stay the same why there is no verdict. Errors of the
// network have ports, times and texts of the server in them, so only what is
// known to be stable is taken from them. The log has the rest.
func (s *settings) why(o runner.Outcome) string {
	text := ""
	switch o.Cause {
	case runner.CauseNone, runner.CauseCanceled, runner.CauseBreakerOpen:
	case runner.CauseTimeout:
		text = s.whyTimeout(o.Err)
	case runner.CauseError, runner.CauseRequest:
		text = s.whyError(o.Err)
	case runner.CausePanic:
		text = "the call panicked"
	case runner.CauseInvalid:
		text = whyInvalid(o.Err)
	case runner.CauseBusy:
		text = "not asked: too many calls have not returned"
	}
	return cut(text)
}

// whyTimeout does not tell which of the clocks of a call rang first.
func (s *settings) whyTimeout(err error) string {
	if e, ok := errors.AsType[*httphook.Error](err); ok && e.Status == http.StatusGatewayTimeout {
		return fmt.Sprintf("status %d", e.Status)
	}
	return fmt.Sprintf("no answer within %v", s.timeout)
}

func whyInvalid(err error) string {
	if e, ok := errors.AsType[*admission.FieldError](err); ok {
		return e.Error()
	}
	return "the decision is not valid"
}

func (s *settings) whyError(err error) string {
	if _, ok := errors.AsType[*verifyError](err); ok {
		return "it could not be found out whether the choice of the hook can be carried out"
	}
	e, ok := errors.AsType[*httphook.Error](err)
	if !ok {
		return "the call failed"
	}
	switch e.Kind {
	case httphook.KindStatus:
		return fmt.Sprintf("status %d", e.Status)
	case httphook.KindContentType:
		return "the answer has a content type other than application/json"
	case httphook.KindTooLarge:
		return fmt.Sprintf("the answer has more than %d bytes", httphook.MaxBytes)
	case httphook.KindMalformed:
		return "the answer cannot be read"
	case httphook.KindUnknownDecision:
		return "the answer has no known decision"
	case httphook.KindRequest:
		return fmt.Sprintf("the request cannot be sent in %d bytes", httphook.MaxBytes)
	case httphook.KindConnection, httphook.KindTimeout, httphook.KindCanceled:
	}
	return s.whyConnection(e.Err)
}

// whyConnection asks who knows err, the most telling first.
func (s *settings) whyConnection(err error) string {
	for _, known := range []func(error) string{
		whyClientCertificate, whyCertificate, whyTLS, whyName, s.whyAddress,
	} {
		if text := known(err); text != "" {
			return text
		}
	}
	return "the connection broke"
}

// source is the near end of a connection, as package net writes it.
var source = regexp.MustCompile(`\S+->`)

func whyClientCertificate(err error) string {
	if e, ok := errors.AsType[*certificateError](err); ok {
		return source.ReplaceAllString(e.Error(), "")
	}
	return ""
}

func whyCertificate(err error) string {
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		if e.Reason == x509.Expired {
			return "the server's certificate has expired or is not yet valid" // else with the time of day
		}
		return "the server's certificate is not valid"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "the server's certificate is signed by an unknown authority"
	}
	if e, ok := errors.AsType[x509.HostnameError](err); ok {
		return fmt.Sprintf("the server's certificate is not for %s", e.Host)
	}
	return ""
}

func whyTLS(err error) string {
	if e, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		if string(e.RecordHeader[:]) == "HTTP/" {
			return "the server speaks http, not https"
		}
		return "tls: " + strings.TrimPrefix(e.Msg, "tls: ")
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "remote error" {
		return fmt.Sprintf("%s: %v", e.Op, e.Err) // an alert, such as "tls: bad certificate"
	}
	return ""
}

func whyName(err error) string {
	e, ok := errors.AsType[*net.DNSError](err)
	switch {
	case !ok:
		return ""
	case e.IsNotFound:
		return fmt.Sprintf("lookup %s: no such host", e.Name)
	}
	return fmt.Sprintf("lookup %s: failed", e.Name)
}

// whyAddress names the endpoint as the operator did: a name may lead to another
// address each time.
func (s *settings) whyAddress(err error) string {
	e, ok := errors.AsType[*net.OpError](err)
	if !ok {
		return ""
	}
	text := "failed"
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		text = errno.Error()
	}
	return fmt.Sprintf("%s %s: %s", e.Op, s.address(), text)
}

func (s *settings) address() string {
	if s.endpoint.UnixSocket != "" {
		return "unix " + s.endpoint.UnixSocket
	}
	u, err := url.Parse(s.endpoint.URL)
	if err != nil {
		return "tcp"
	}
	return "tcp " + u.Host
}

// cut makes s fit the status, at the end of a character.
func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	end := maxText
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}
