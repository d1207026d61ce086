package harness

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
)

// Request is one finished request in the API server's audit log.
type Request struct {
	Stage      string `json:"stage"`
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"responseStatus"`
	RequestObject  json.RawMessage `json:"requestObject"`
	ResponseObject json.RawMessage `json:"responseObject"`
}

// Target is what was asked for: the resource, and its subresource if there is one.
func (r *Request) Target() string {
	return strings.TrimSuffix(r.ObjectRef.Resource+"/"+r.ObjectRef.Subresource, "/")
}

// Writes tells whether it was to change something.
func (r *Request) Writes() bool {
	return slices.Contains([]string{"create", "update", "patch", "delete"}, r.Verb)
}

// Audit calls see with each request of an audit log from an offset on; all of them may be
// more than memory should hold. torn is how many lines could not be read, because the API
// server was still writing them, or was killed.
func Audit(path string, offset int64, see func(Request)) (torn int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r Request
		switch err := json.Unmarshal(lines.Bytes(), &r); {
		case err != nil:
			torn++
		case r.Stage == "ResponseComplete":
			see(r)
		}
	}
	return torn, lines.Err()
}
