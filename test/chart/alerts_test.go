package chart

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/dispatch-admission/dispatch-admission/test/chart/matrix"
)

// query is an expression that the chart has people's Prometheus evaluate.
type query struct{ where, expr string }

// alert is one of a rendered PrometheusRule.
type alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]any
}

// alerts are all that the chart has.
func alerts(t *testing.T) []alert {
	t.Helper()
	r, err := renderValues(t, set(true, "metrics", "prometheusRule", "enabled"))
	if err != nil {
		t.Fatal(err)
	}
	var found []alert
	for _, o := range r.Objects {
		if o.Text("kind") != "PrometheusRule" {
			continue
		}
		for _, group := range o.At("spec", "groups").([]any) {
			for _, rule := range group.(map[string]any)["rules"].([]any) {
				a := matrix.Object(rule.(map[string]any))
				labels, _ := a.At("labels").(map[string]any)
				annotations, _ := a.At("annotations").(map[string]any)
				found = append(found, alert{a.Text("alert"), a.Text("expr"), labels, annotations})
			}
		}
	}
	if len(found) == 0 {
		t.Fatal("there are no alerts")
	}
	return found
}

// queries are those of the alerts and of the dashboard.
func queries(t *testing.T) []query {
	t.Helper()
	var all []query
	for _, a := range alerts(t) {
		all = append(all, query{"alert " + a.Alert, a.Expr})
	}
	text, err := os.ReadFile(dir + "/files/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all = append(all, query{"panel " + p.Title, strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")})
		}
	}
	return all
}

// ofOthers are metrics that the libraries bring.
var ofOthers = []string{"process_resident_memory_bytes"}

// TestQueries: each parses, and asks for metrics that the programs have, by labels that
// they have.
func TestQueries(t *testing.T) {
	known := metricsInSources(t)
	p := parser.NewParser(parser.Options{})
	for _, q := range queries(t) {
		t.Run(q.where, func(t *testing.T) {
			expr, err := p.ParseExpr(q.expr)
			if err != nil {
				t.Fatalf("%s: %v", q.expr, err)
			}
			asked := 0
			parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
				if selector, ok := node.(*parser.VectorSelector); ok {
					asked++
					name := strings.TrimSuffix(selector.Name, "_bucket")
					if !known[name] && !slices.Contains(ofOthers, name) {
						t.Errorf("no program has the metric %s", name)
					}
					if !strings.Contains(selector.String(), "namespace") {
						t.Errorf("%s: looks at all namespaces, and so at other releases", selector)
					}
				}
				return nil
			})
			if asked == 0 {
				t.Errorf("%s: asks for no metric", q.expr)
			}
		})
	}
}

// metricsInSources are the names of metrics in the sources of the programs.
func metricsInSources(t *testing.T) map[string]bool {
	t.Helper()
	name := regexp.MustCompile(`"(dispatch_[a-z_]+)"`)
	found := map[string]bool{}
	err := filepath.WalkDir(root+"/pkg", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range name.FindAllSubmatch(text, -1) {
			found[string(m[1])] = true
		}
		return err
	})
	if err != nil || len(found) == 0 {
		t.Fatalf("no metric was found in the sources: %v", err)
	}
	return found
}

// TestRunbooks: each alert leads to a place that is there, and says how urgent it is.
func TestRunbooks(t *testing.T) {
	text, err := os.ReadFile(root + "/docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range alerts(t) {
		url, _ := a.Annotations["runbook_url"].(string)
		file, anchor, _ := strings.Cut(url, "#")
		if !strings.HasSuffix(file, "/docs/operate.md") || !strings.Contains(string(text), fmt.Sprintf("<a id=%q></a>", anchor)) {
			t.Errorf("%s: %q leads nowhere", a.Alert, url)
		}
		if severity := a.Labels["severity"]; severity != "warning" && severity != "critical" {
			t.Errorf("%s: the severity is %v", a.Alert, severity)
		}
	}
}

// TestAlertNames: those that can be turned off are those that there are.
func TestAlertNames(t *testing.T) {
	var rendered []string
	for _, a := range alerts(t) {
		rendered = append(rendered, a.Alert)
	}
	var s struct {
		Properties struct {
			Metrics struct {
				Properties struct {
					PrometheusRule struct {
						Properties struct {
							Disabled struct{ Items struct{ Enum []string } }
						}
					}
				}
			}
		}
	}
	if err := json.Unmarshal(loadChart(t).Schema, &s); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rendered, s.Properties.Metrics.Properties.PrometheusRule.Properties.Disabled.Items.Enum); diff != "" {
		t.Errorf("-rendered +in the schema\n%s", diff)
	}
	every, err := renderValues(t, set(map[string]any{"enabled": true, "disabled": anySlice(rendered[1:])}, "metrics", "prometheusRule"))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(every.Objects, func(o matrix.Object) bool { return o.Text("kind") == "PrometheusRule" })
	rules := every.Objects[i].At("spec", "groups").([]any)[0].(map[string]any)["rules"].([]any)
	if len(rules) != 1 {
		t.Errorf("%d rules are left of %d, want 1", len(rules), len(rendered))
	}
}

func anySlice(texts []string) []any {
	all := make([]any, 0, len(texts))
	for _, text := range texts {
		all = append(all, text)
	}
	return all
}
