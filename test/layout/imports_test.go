package layout

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/dispatch-admission/dispatch-admission"

// listed is a package as go list prints it.
type listed struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string
}

// row is one line of the import table: a package, or a tree of packages when it
// ends in "/...", and what its files other than tests may import. "std" stands
// for the standard library, "./x" for a package of this module, and "..." ends
// a tree. What is in except is refused although something in allow covers it.
type row struct {
	pkg    string
	allow  []string
	except []string
}

// kubernetesTypes are the packages that hold types and plain functions on them.
var kubernetesTypes = []string{
	"k8s.io/api/...",
	"k8s.io/apimachinery/...",
}

// apiTypes are the types of everything that the controller reads or writes.
var apiTypes = slices.Concat(kubernetesTypes, []string{
	"sigs.k8s.io/kueue/apis/...",
	"github.com/kubeflow/trainer/v2/pkg/apis/...",
	"sigs.k8s.io/jobset/api/...",
	"./api/...",
})

// impure is what a package must not import whose result is to depend on its
// arguments alone.
var impure = []string{
	"context", "crypto/rand", "log/...", "math/rand/...", "net", "net/http/...",
	"os/...", "syscall", "testing/...",
	"k8s.io/apimachinery/pkg/util/rand", "k8s.io/apimachinery/pkg/util/wait", "k8s.io/apimachinery/pkg/watch",
}

var purePackages = []string{"pkg/internal/gate", "pkg/internal/fence", "pkg/internal/hold", "pkg/internal/request", "pkg/internal/placement", "pkg/internal/policy"}

// table is the import table. The first row that matches a package counts.
var table = []row{
	{pkg: "pkg/admission/...", allow: []string{"std", "./pkg/admission/..."}},
	{pkg: "api/...", allow: slices.Concat([]string{"std", "./api/..."}, kubernetesTypes)},
	{pkg: "pkg/internal/gate", allow: pure, except: impure},
	{pkg: "pkg/internal/fence", allow: pure, except: impure},
	{pkg: "pkg/internal/hold", allow: pure, except: impure},
	{pkg: "pkg/internal/request", allow: pure, except: impure},
	{pkg: "pkg/internal/placement", allow: pure, except: impure},
	{pkg: "pkg/internal/policy", allow: []string{
		"std", "./pkg/admission", "github.com/google/cel-go/...", "go.yaml.in/yaml/v3",
		"k8s.io/apiserver/pkg/cel", "k8s.io/apiserver/pkg/cel/library", "k8s.io/apimachinery/pkg/api/resource",
	}, except: slices.DeleteFunc(slices.Clone(impure), func(p string) bool { return p == "context" })}, // a hook gets one
	{pkg: "pkg/internal/runner", allow: []string{"std", "./pkg/admission/..."}},
	{pkg: "pkg/internal/hooks", allow: []string{
		"std", "./api/v1alpha1", "./pkg/admission", "./pkg/admission/httphook", "./pkg/internal/runner", "./pkg/internal/metrics",
		"k8s.io/apimachinery/pkg/types", "k8s.io/apimachinery/pkg/apis/meta/v1",
	}},
	{pkg: "pkg/internal/metrics", allow: []string{"std", "github.com/prometheus/..."}},
	{pkg: "pkg/internal/lease", allow: slices.Concat(
		[]string{"std", "./api/...", "k8s.io/client-go/..."}, kubernetesTypes)},
	{pkg: "pkg/internal/wiring", allow: slices.Concat([]string{
		"std", "./api/v1alpha1", "./pkg/internal/hold", "sigs.k8s.io/controller-runtime/pkg/client", "sigs.k8s.io/kueue/apis/...",
	}, kubernetesTypes)},
	{pkg: "pkg/internal/controller", allow: slices.Concat([]string{
		"std", "./pkg/admission/...", "./pkg/internal/...",
		"github.com/go-logr/logr", "k8s.io/client-go/...", "k8s.io/utils/...",
		"sigs.k8s.io/controller-runtime/...", "sigs.k8s.io/kueue/client-go/...",
	}, apiTypes)},
	{pkg: "pkg/startgate", allow: slices.Concat([]string{
		"std", "./api/v1alpha1", "./pkg/admission", "github.com/go-logr/logr", "k8s.io/klog/v2",
		"k8s.io/client-go/rest", "k8s.io/client-go/tools/cache", "sigs.k8s.io/kueue/apis/...",
	}, kubernetesTypes)},
	{pkg: "pkg/internal/ctl/...", allow: slices.Concat([]string{
		"std", "./pkg/admission", "./pkg/internal/ctl/...", "./pkg/internal/policy",
		"./pkg/internal/fence", "./pkg/internal/gate", "./pkg/internal/hold", "./pkg/internal/request", "./pkg/internal/wiring",
		"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/pkg/client",
		"github.com/spf13/cobra", "go.yaml.in/yaml/v3", "sigs.k8s.io/yaml",
	}, apiTypes)},
	{pkg: "pkg/internal/adapter", allow: []string{
		"std", "./pkg/admission", "./pkg/admission/httphook", "./pkg/internal/policy",
		"github.com/fsnotify/fsnotify", "github.com/prometheus/client_golang/...", "go.yaml.in/yaml/v3", "k8s.io/apimachinery/pkg/util/validation",
	}},
	{pkg: "pkg/internal/testca", allow: []string{"std"}}, // for tests of several packages
	{pkg: "pkg/app", allow: []string{"..."}},
	{pkg: "cmd/hooktest", allow: []string{"std", "./pkg/admission/hooktest"}},
	{pkg: "cmd/...", allow: []string{"std", "./pkg/app"}},
	{pkg: "test/...", allow: []string{"..."}},
}

var pure = slices.Concat([]string{
	"std", "./pkg/admission",
	"./pkg/internal/gate", "./pkg/internal/fence", "./pkg/internal/hold", "./pkg/internal/request", "./pkg/internal/placement",
}, apiTypes)

// checkImports applies the table, and what holds for every package.
func checkImports(pkgs []listed) []string {
	var problems []string
	for _, p := range pkgs {
		problems = append(problems, checkRow(p)...)
		problems = append(problems, checkKueue(p)...)
		problems = append(problems, checkContract(p)...)
	}
	return problems
}

func checkRow(p listed) []string {
	i := slices.IndexFunc(table, func(r row) bool { return matches("./"+r.pkg, p.ImportPath) })
	if i < 0 {
		return []string{p.ImportPath + ": has no row in the import table; give it one, as narrow as it can be"}
	}
	var problems []string
	for _, imp := range p.Imports {
		if !matchesAny(table[i].allow, imp) || matchesAny(table[i].except, imp) {
			problems = append(problems, fmt.Sprintf("%s: must not import %s; the row %q of the import table says what it may",
				p.ImportPath, imp, table[i].pkg))
		}
	}
	return problems
}

// checkKueue refuses Kueue's own packages: they change with every release.
// Only its API types and its generated client are meant for others. Tests are
// held to it like everything else; test/... may drive the real thing.
func checkKueue(p listed) []string {
	if matches("./test/...", p.ImportPath) {
		return nil
	}
	const why = "%s: must not import %s; of Kueue only apis and client-go are meant for others"
	var problems []string
	for _, imp := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
		allowed := matches("sigs.k8s.io/kueue/apis/...", imp) || matches("sigs.k8s.io/kueue/client-go/...", imp)
		if matches("sigs.k8s.io/kueue/...", imp) && !allowed {
			problems = append(problems, fmt.Sprintf(why, p.ImportPath, imp))
		}
	}
	for _, dep := range p.Deps {
		if matches("sigs.k8s.io/kueue/pkg/...", dep) && !slices.Contains(p.Imports, dep) {
			problems = append(problems, fmt.Sprintf(why, p.ImportPath, dep+" (by way of another package)"))
		}
	}
	return problems
}

// checkContract looks at all that the hook contract needs, however far away: it
// is what a hook author has to build.
func checkContract(p listed) []string {
	if !matches("./pkg/admission/...", p.ImportPath) {
		return nil
	}
	var problems []string
	for _, dep := range p.Deps {
		if !matches("std", dep) && !matches("./pkg/admission/...", dep) {
			problems = append(problems, fmt.Sprintf("%s: depends on %s; the hook contract needs the standard library alone",
				p.ImportPath, dep))
		}
	}
	return problems
}

func matchesAny(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, path) })
}

func matches(pattern, path string) bool {
	if pattern == "std" {
		first, _, _ := strings.Cut(path, "/")
		return !strings.Contains(first, ".")
	}
	if rest, ok := strings.CutPrefix(pattern, "./"); ok {
		pattern = module + "/" + rest
	}
	tree, ok := strings.CutSuffix(pattern, "...")
	if !ok {
		return path == pattern
	}
	return path == strings.TrimSuffix(tree, "/") || strings.HasPrefix(path, tree)
}

func TestCheckImports(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		pkg    listed
		want   string // part of the only problem, "" for none
	}{
		"ContractStdlib": {
			reason: "the contract may use the standard library and its own packages, down to what they need",
			pkg: listed{
				ImportPath: module + "/pkg/admission/httphook", Imports: []string{"net/http", module + "/pkg/admission"},
				Deps: []string{"unsafe", "vendor/golang.org/x/net/idna", module + "/pkg/admission"},
			},
		},
		"ContractDirect": {
			reason: "a hook author must not inherit a dependency",
			pkg:    listed{ImportPath: module + "/pkg/admission", Imports: []string{"k8s.io/api/core/v1"}},
			want:   "must not import k8s.io/api/core/v1",
		},
		"ContractTransitive": {
			reason: "nor by way of another package",
			pkg:    listed{ImportPath: module + "/pkg/admission/hooktest", Deps: []string{"github.com/google/go-cmp/cmp"}},
			want:   "depends on github.com/google/go-cmp/cmp",
		},
		"ContractInternals": {
			reason: "the contract does not know who serves it",
			pkg:    listed{ImportPath: module + "/pkg/admission", Imports: []string{module + "/pkg/internal/runner"}},
			want:   "must not import " + module + "/pkg/internal/runner",
		},
		"PureTypes": {
			reason: "a pure package works on the API types",
			pkg: listed{ImportPath: module + "/pkg/internal/gate", Imports: []string{
				"strconv", "time", "sigs.k8s.io/kueue/apis/kueue/v1beta2", "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1",
				"k8s.io/apimachinery/pkg/api/meta", "k8s.io/api/batch/v1", module + "/api/v1alpha1", module + "/pkg/admission",
			}},
		},
		"PureContext": {
			reason: "a pure package waits for nothing",
			pkg:    listed{ImportPath: module + "/pkg/internal/gate", Imports: []string{"context"}},
			want:   "must not import context",
		},
		"PureLog": {
			reason: "a pure package tells nobody, by any logger",
			pkg:    listed{ImportPath: module + "/pkg/internal/fence", Imports: []string{"log/slog"}},
			want:   "must not import log/slog",
		},
		"PureLogr": {
			reason: "nor by the one of controller-runtime",
			pkg:    listed{ImportPath: module + "/pkg/internal/fence", Imports: []string{"github.com/go-logr/logr"}},
			want:   "must not import github.com/go-logr/logr",
		},
		"PureClock": {
			reason: "a pure package is told the time",
			pkg:    listed{ImportPath: module + "/pkg/internal/gate", Imports: []string{"k8s.io/utils/clock"}},
			want:   "must not import k8s.io/utils/clock",
		},
		"PureClient": {
			reason: "a pure package reads nothing",
			pkg:    listed{ImportPath: module + "/pkg/internal/gate", Imports: []string{"sigs.k8s.io/controller-runtime/pkg/client"}},
			want:   "must not import sigs.k8s.io/controller-runtime/pkg/client",
		},
		"PureHTTP": {
			reason: "a pure package does not know the contract's transport",
			pkg:    listed{ImportPath: module + "/pkg/internal/gate", Imports: []string{module + "/pkg/admission/httphook"}},
			want:   "must not import " + module + "/pkg/admission/httphook",
		},
		"PolicyCEL": {
			reason: "the policy is written in CEL, with the libraries of Kubernetes, and is a hook",
			pkg: listed{ImportPath: module + "/pkg/internal/policy", Imports: []string{
				"context", "github.com/google/cel-go/common/types", "k8s.io/apiserver/pkg/cel/library", "go.yaml.in/yaml/v3", module + "/pkg/admission",
			}},
		},
		"PolicyFiles": {
			reason: "it is given the text of a file",
			pkg:    listed{ImportPath: module + "/pkg/internal/policy", Imports: []string{"os"}},
			want:   "must not import os",
		},
		"PolicyServer": {
			reason: "of the API server it takes the language alone",
			pkg:    listed{ImportPath: module + "/pkg/internal/policy", Imports: []string{"k8s.io/apiserver/pkg/cel/environment"}},
			want:   "must not import k8s.io/apiserver/pkg/cel/environment",
		},
		"RunnerKubernetes": {
			reason: "the runner runs in the adapter too, which has no cluster",
			pkg:    listed{ImportPath: module + "/pkg/internal/runner", Imports: []string{"k8s.io/apimachinery/pkg/types"}},
			want:   "must not import k8s.io/apimachinery/pkg/types",
		},
		"HooksCluster": {
			reason: "who asks hooks is told what it needs of the cluster",
			pkg:    listed{ImportPath: module + "/pkg/internal/hooks", Imports: []string{"sigs.k8s.io/controller-runtime/pkg/client"}},
			want:   "must not import sigs.k8s.io/controller-runtime/pkg/client",
		},
		"MetricsController": {
			reason: "metrics count; they know nothing of what they count",
			pkg:    listed{ImportPath: module + "/pkg/internal/metrics", Imports: []string{"sigs.k8s.io/controller-runtime/pkg/metrics"}},
			want:   "must not import sigs.k8s.io/controller-runtime/pkg/metrics",
		},
		"LeaseControllerRuntime": {
			reason: "the Lease is client-go's business",
			pkg:    listed{ImportPath: module + "/pkg/internal/lease", Imports: []string{"sigs.k8s.io/controller-runtime"}},
			want:   "must not import sigs.k8s.io/controller-runtime",
		},
		"ControllerPrometheus": {
			reason: "the controller counts through internal/metrics",
			pkg:    listed{ImportPath: module + "/pkg/internal/controller", Imports: []string{"github.com/prometheus/client_golang/prometheus"}},
			want:   "must not import github.com/prometheus/client_golang/prometheus",
		},
		"StartGateControllerRuntime": {
			reason: "a server that embeds the start gate must not take a framework along",
			pkg:    listed{ImportPath: module + "/pkg/startgate", Imports: []string{"sigs.k8s.io/controller-runtime/pkg/client"}},
			want:   "must not import sigs.k8s.io/controller-runtime/pkg/client",
		},
		"StartGateClientset": {
			reason: "nor a client for every kind that there is",
			pkg:    listed{ImportPath: module + "/pkg/startgate", Imports: []string{"k8s.io/client-go/kubernetes"}},
			want:   "must not import k8s.io/client-go/kubernetes",
		},
		"StartGateInternals": {
			reason: "it is public, and decides with what it reads itself",
			pkg:    listed{ImportPath: module + "/pkg/startgate", Imports: []string{module + "/pkg/internal/lease"}},
			want:   "must not import " + module + "/pkg/internal/lease",
		},
		"CtlController": {
			reason: "a command asks the gate's decisions, not its wiring",
			pkg:    listed{ImportPath: module + "/pkg/internal/ctl", Imports: []string{module + "/pkg/internal/controller"}},
			want:   "must not import " + module + "/pkg/internal/controller",
		},
		"AdapterCluster": {
			reason: "the adapter decides without a cluster; the start gate is handed to it",
			pkg:    listed{ImportPath: module + "/pkg/internal/adapter", Imports: []string{module + "/pkg/startgate"}},
			want:   "must not import " + module + "/pkg/startgate",
		},
		"AdapterCommand": {
			reason: "dispatch-hook calls the door and nothing behind it",
			pkg:    listed{ImportPath: module + "/cmd/dispatch-hook", Imports: []string{module + "/pkg/internal/adapter"}},
			want:   "must not import " + module + "/pkg/internal/adapter",
		},
		"CommandInternals": {
			reason: "a command is a signal context and one call",
			pkg:    listed{ImportPath: module + "/cmd/dispatch-admission", Imports: []string{module + "/pkg/admission"}},
			want:   "must not import " + module + "/pkg/admission",
		},
		"ConformanceCommand": {
			reason: "hook authors build it, so it needs the contract alone",
			pkg:    listed{ImportPath: module + "/cmd/hooktest", Imports: []string{module + "/pkg/app"}},
			want:   "must not import " + module + "/pkg/app",
		},
		"KueueInternals": {
			reason: "Kueue's packages move with every release",
			pkg:    listed{ImportPath: module + "/pkg/app", Imports: []string{"sigs.k8s.io/kueue/pkg/workload"}},
			want:   "must not import sigs.k8s.io/kueue/pkg/workload",
		},
		"KueueInternalsInTest": {
			reason: "a unit test would break with them as well",
			pkg:    listed{ImportPath: module + "/pkg/app", XTestImports: []string{"sigs.k8s.io/kueue/test/util"}},
			want:   "must not import sigs.k8s.io/kueue/test/util",
		},
		"KueueInternalsTransitive": {
			reason: "nor may they come in through a third module",
			pkg:    listed{ImportPath: module + "/pkg/app", Deps: []string{"sigs.k8s.io/kueue/pkg/util/slices"}},
			want:   "by way of another package",
		},
		"KueueUnderTest": {
			reason: "the tests may drive the real Kueue",
			pkg:    listed{ImportPath: module + "/test/integration", Imports: []string{"sigs.k8s.io/kueue/pkg/workload"}},
		},
		"NoRow": {
			reason: "a new package must not escape the table",
			pkg:    listed{ImportPath: module + "/pkg/internal/novel"},
			want:   "has no row",
		},
		"NamesakeOfARow": {
			reason: "a row covers a path, not a prefix of letters",
			pkg:    listed{ImportPath: module + "/pkg/internal/gatekeeper"},
			want:   "has no row",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expectProblem(t, tc.reason, checkImports([]listed{tc.pkg}), tc.want)
		})
	}
}

// expectProblem wants exactly one problem that contains want, or none if want is
// empty.
func expectProblem(t *testing.T, reason string, got []string, want string) {
	t.Helper()
	switch {
	case want == "" && len(got) > 0:
		t.Errorf("%s: want no problem, got %q", reason, got)
	case want != "" && (len(got) != 1 || !strings.Contains(got[0], want)):
		t.Errorf("%s: want one problem with %q, got %q", reason, want, got)
	}
}
