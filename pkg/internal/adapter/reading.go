package adapter

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/policy"
)

// maxFile is what one file may hold; a ConfigMap has no room for more.
const maxFile = 1 << 20

// file is what a file held when it was read, or why it could not be.
type file struct {
	path string
	data []byte
	err  error
}

func readFile(path string) file {
	if path == "" {
		return file{}
	}
	f, err := os.Open(path)
	if err != nil {
		return file{path: path, err: err}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	err = errors.Join(err, f.Close())
	if err == nil && len(data) > maxFile {
		data, err = nil, fmt.Errorf("has more than %d bytes", maxFile)
	}
	return file{path: path, data: data, err: err}
}

// digest tells apart what two readings came to. Errors count: a file that is
// gone is news too.
func digest(files ...file) string {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%q %d %v\n", f.path, len(f.data), f.err)
		_, _ = h.Write(f.data) // never fails
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}

// reading is what the configuration held at one moment, the policy included.
type reading struct {
	config file
	policy file // of Config.PolicyFile
	digest string
}

// read reads the configuration, and what it names as the file of the policy. To
// find that, it is parsed, unless it is still what it was in the last reading.
// What is wrong with it is for load to say.
func read(path string, last reading) reading {
	r := reading{config: readFile(path)}
	policyFile := last.policy.path
	if !bytes.Equal(r.config.data, last.config.data) {
		d := &document{file: path}
		policyFile = d.parseConfig(r.config.data, false).PolicyFile
	}
	r.policy = readFile(policyFile)
	r.digest = digest(r.config, r.policy)
	return r
}

// generation is a configuration in force.
type generation struct {
	number int
	digest string
	loaded time.Time
	config *Config
	policy *policy.Policy // nil when the program has a hook of its own
	hook   admission.Hook // that hook, or the policy
}

// load checks the reading and compiles the policy. The error joins a
// [policy.Problem] for everything that is wrong.
func (r reading) load(o Options) (*generation, error) {
	d := &document{file: r.config.path}
	if r.config.err != nil {
		return nil, fmt.Errorf("-config: %w", r.config.err)
	}
	g := &generation{digest: r.digest, config: d.parseConfig(r.config.data, o.Hook != nil)}
	c := g.config
	if c.HTTPS != nil && overlap(c.HTTPS.Address, o.MetricsAddress) {
		d.problem(c.lines[fieldAddress], fieldAddress, "%q is in the way of -metrics-bind-address %s; give one of them another port", c.HTTPS.Address, o.MetricsAddress)
	}
	if c.Kueue != nil && o.Start == nil {
		d.problem(0, "kueue", "this program has no start gate; remove the field")
	}
	var err error
	switch {
	case c.inline != nil:
		g.policy, err = policy.LoadNode(r.config.path, c.inline)
	case r.policy.err != nil:
		d.problem(c.lines[fieldPolicy], fieldPolicy, "%v", r.policy.err)
	case r.policy.path != "":
		g.policy, err = policy.Load(r.policy.path, r.policy.data)
	}
	d.add(err)
	if err := d.err(); err != nil {
		return nil, err
	}
	return g, nil
}

// loadSafely keeps what is in force from being lost to a file that a parser
// stumbles over.
func (r reading) loadSafely(o Options) (g *generation, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%s: reading it panicked: %v", r.config.path, v)
		}
	}()
	return r.load(o)
}
