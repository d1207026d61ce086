package adapter

import (
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Config is what the configuration file says, beside the policy.
type Config struct {
	// UnixSocket is the path to listen on, "" for none.
	UnixSocket string

	// HTTPS is nil when there is no such listener.
	HTTPS *HTTPS

	// Kueue is nil when there is no start gate.
	Kueue *Kueue

	// PolicyFile is where the policy is, unless it is in the configuration.
	PolicyFile string

	inline *yaml.Node     // the policy in the configuration
	lines  map[string]int // of the fields
}

// HTTPS is a listener on the network.
type HTTPS struct {
	Address  string // host:port
	CertFile string
	KeyFile  string

	// ClientCAFile holds what the certificates of clients must go back to.
	// Without it anyone may ask.
	ClientCAFile string
}

// Kueue is what the start gate looks at.
type Kueue struct {
	// LeaseNamespace and LeaseName name the Lease of the controller; what is
	// empty is as in its defaults.
	LeaseNamespace string
	LeaseName      string

	// LocalQueue and Namespace are those of a request that names none. Without
	// them such a request is refused.
	LocalQueue string
	Namespace  string
}

// The names of the fields that are told of elsewhere.
const (
	fieldSocket   = "listen.unixSocket"
	fieldAddress  = "listen.https.address"
	fieldCert     = "listen.https.certFile"
	fieldKey      = "listen.https.keyFile"
	fieldClientCA = "listen.https.clientCAFile"
	fieldLease    = "kueue.admissionLease"
	fieldQueue    = "kueue.localQueue"
	fieldSpace    = "kueue.namespace"
	fieldPolicy   = "policy.file"
)

// maxSocketPath is what the kernel has room for, less the byte that ends it.
const maxSocketPath = 107

// settings are the fields that hold from start to end, in the order of the file.
func (c *Config) settings() [][2]string {
	https, kueue := HTTPS{}, Kueue{}
	if c.HTTPS != nil {
		https = *c.HTTPS
	}
	lease := ""
	if c.Kueue != nil {
		kueue = *c.Kueue
		lease = kueue.LeaseNamespace + "/" + kueue.LeaseName
	}
	return [][2]string{
		{fieldSocket, c.UnixSocket}, {fieldAddress, https.Address}, {fieldCert, https.CertFile}, {fieldKey, https.KeyFile},
		{fieldClientCA, https.ClientCAFile}, {fieldLease, lease}, {fieldQueue, kueue.LocalQueue},
		{fieldSpace, kueue.Namespace},
	}
}

// parseConfig reads the configuration as far as it can be read: the Config is
// of use although problems were found.
func (d *document) parseConfig(data []byte, ownHook bool) *Config {
	c := &Config{lines: map[string]int{}}
	root := d.parse(data)
	if root == nil {
		return c
	}
	top := d.fields(root, "", "listen", "kueue", "policy")
	switch listen := top["listen"]; {
	case top == nil:
	case listen == nil:
		d.missing(root, "listen", "give it unixSocket, https, or both")
	default:
		c.readListen(d, listen)
	}
	if kueue := top["kueue"]; kueue != nil {
		c.readKueue(d, kueue)
	}
	switch rules := top["policy"]; {
	case top == nil:
	case rules != nil && ownHook:
		d.problem(rules.Line, "policy", "this program has a hook of its own, which decides in place of a policy; remove the policy, or run dispatch-hook")
	case rules != nil:
		c.readPolicy(d, rules)
	case !ownHook:
		d.missing(root, "policy", "give it rules or a file; a policy that admits everything is {rules: []}")
	}
	return c
}

func (c *Config) readListen(d *document, n *yaml.Node) {
	f := d.fields(n, "listen", "unixSocket", "https")
	if f != nil && f["unixSocket"] == nil && f["https"] == nil {
		d.problem(n.Line, "listen", "says nowhere to listen; give it unixSocket, https, or both")
	}
	c.UnixSocket = c.path(d, f["unixSocket"], fieldSocket)
	if len(c.UnixSocket) > maxSocketPath {
		d.problem(c.lines[fieldSocket], fieldSocket, "has %d bytes, and the path of a socket may have %d; choose a shorter one", len(c.UnixSocket), maxSocketPath)
	}
	if f["https"] != nil {
		c.readHTTPS(d, f["https"])
	}
}

func (c *Config) readHTTPS(d *document, n *yaml.Node) {
	f := d.fields(n, "listen.https", "address", "certFile", "keyFile", "clientCAFile")
	if f == nil {
		return
	}
	for _, needed := range [][2]string{
		{"address", `give it host:port, or ":8443" for every address of this machine`},
		{"certFile", "it holds the certificate of this server, in PEM"},
		{"keyFile", "it holds the key of that certificate, in PEM"},
	} {
		if f[needed[0]] == nil {
			d.missing(n, "listen.https."+needed[0], needed[1])
		}
	}
	c.HTTPS = &HTTPS{
		Address:      c.address(d, f["address"]),
		CertFile:     c.path(d, f["certFile"], fieldCert),
		KeyFile:      c.path(d, f["keyFile"], fieldKey),
		ClientCAFile: c.path(d, f["clientCAFile"], fieldClientCA),
	}
	for _, s := range c.settings()[2:5] {
		if s[1] != "" && s[1] == c.UnixSocket {
			d.problem(c.lines[s[0]], s[0], "%q is %s too; choose another path for the socket", s[1], fieldSocket)
		}
	}
}

func (c *Config) address(d *document, n *yaml.Node) string {
	address := d.text(n, fieldAddress)
	if address == "" {
		return ""
	}
	c.lines[fieldAddress] = n.Line
	if problem := checkAddress(address); problem != "" {
		d.problem(n.Line, fieldAddress, "%q %s", address, problem)
	}
	return address
}

func (c *Config) readKueue(d *document, n *yaml.Node) {
	f := d.fields(n, "kueue", "admissionLease", "localQueue", "namespace")
	if f == nil {
		return
	}
	c.Kueue = &Kueue{
		LocalQueue: d.name(f["localQueue"], fieldQueue, queueProblems),
		Namespace:  d.name(f["namespace"], fieldSpace, validation.IsDNS1123Label),
	}
	if lease := f["admissionLease"]; lease != nil {
		g := d.fields(lease, fieldLease, "namespace", "name")
		c.Kueue.LeaseNamespace = d.name(g["namespace"], fieldLease+".namespace", validation.IsDNS1123Label)
		c.Kueue.LeaseName = d.name(g["name"], fieldLease+".name", validation.IsDNS1123Subdomain)
	}
}

// queueProblems is what is wrong with the name of a LocalQueue, which must also
// fit into a label.
func queueProblems(name string) []string {
	return append(validation.IsDNS1123Subdomain(name), validation.IsValidLabelValue(name)...)
}

func (c *Config) readPolicy(d *document, n *yaml.Node) {
	if has(n, "rules") && !has(n, "file") {
		c.inline = n // what is wrong with it, package policy says
		return
	}
	f := d.fields(n, "policy", "rules", "file")
	switch {
	case f["rules"] != nil && f["file"] != nil:
		d.problem(f["rules"].Line, "policy.rules", "the rules are in %s already; leave one of the two out", fieldPolicy)
	case f != nil && f["rules"] == nil && f["file"] == nil:
		d.missing(n, "policy.rules", "give it rules, or a file that has them; rules that admit everything are []")
	}
	c.PolicyFile = c.path(d, f["file"], fieldPolicy)
}

// has tells whether n is a mapping with the name.
func has(n *yaml.Node, name string) bool {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return true
		}
	}
	return false
}

// path reads a path. It must be absolute: the folder that a process was started
// in is no part of the configuration.
func (c *Config) path(d *document, n *yaml.Node, field string) string {
	path := d.text(n, field)
	if path == "" {
		return ""
	}
	c.lines[field] = n.Line
	switch {
	case !filepath.IsAbs(path):
		d.problem(n.Line, field, "%q is relative; write the path from the root, beginning with /", path)
	case strings.HasSuffix(path, "/"):
		d.problem(n.Line, field, "%q names a folder; name a file in it", path)
	}
	return path
}

func (d *document) name(n *yaml.Node, field string, check func(string) []string) string {
	name := d.text(n, field)
	if name == "" {
		return ""
	}
	if problems := check(name); len(problems) > 0 {
		d.problem(n.Line, field, "%q: %s", name, problems[0])
	}
	return name
}

// checkAddress says what is wrong with host:port, "" if nothing is.
func checkAddress(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return "is not host:port; :8443 is every address of this machine, and IPv6 needs brackets"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return "must have a port from 0 to 65535, as a number"
	}
	return ""
}

// overlap tells whether two listeners would be in each other's way.
func overlap(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	return hostA == hostB || isWildcard(hostA) || isWildcard(hostB)
}

func isWildcard(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}
