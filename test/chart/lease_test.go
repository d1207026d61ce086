package chart

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/dispatch-admission/dispatch-admission/test/chart/matrix"
)

// leaseCase is where a Lease is and who has it.
type leaseCase struct{ release, namespace, leaseNamespace, leaseName string }

// leaseCases draws from names that YAML could take for something else, and from long
// ones, always the same.
func leaseCases() []leaseCase {
	r := mathrand.New(mathrand.NewPCG(1, 2)) // the same each time
	odd := []string{"true", "null", "1234", "1e3", "0x1f", "on", "y", "00", "1.5", "a", strings.Repeat("n", 63)}
	names := func(dots bool) string {
		name := odd[r.IntN(len(odd))]
		if r.IntN(2) == 0 {
			name = fmt.Sprintf("%c%d-%c", 'a'+rune(r.IntN(26)), r.IntN(1000), 'a'+rune(r.IntN(26)))
		}
		if !dots {
			name = strings.ReplaceAll(name, ".", "-")
		}
		return name
	}
	var cases []leaseCase
	for range 60 {
		c := leaseCase{release: names(false), namespace: names(false), leaseNamespace: names(false), leaseName: names(true)}
		c.release = c.release[:min(len(c.release), 53)]
		if r.IntN(4) == 0 {
			c.leaseNamespace = "" // that of the release
		}
		cases = append(cases, c)
	}
	return cases
}

// TestLease: who elects, who may, and who watches all mean the same Lease.
func TestLease(t *testing.T) {
	for i, c := range leaseCases() {
		t.Run(fmt.Sprintf("%d", i), func(t *testing.T) {
			r, err := render(t, matrix.Case{Release: c.release, Namespace: c.namespace, Values: map[string]any{
				"lease":   map[string]any{"namespace": c.leaseNamespace, "name": c.leaseName},
				"adapter": map[string]any{"mode": "Deployment", "tls": map[string]any{"issuerRef": map[string]any{"name": "ca"}}},
			}})
			if err != nil {
				t.Fatalf("%+v: %v", c, err)
			}
			namespace := c.leaseNamespace
			if namespace == "" {
				namespace = c.namespace
			}
			want := namespace + "/" + c.leaseName
			for where, got := range leases(t, r) {
				if got != want {
					t.Errorf("%+v: %s means the Lease %s, want %s", c, where, got, want)
				}
			}
		})
	}
}

// leases are where each part of a release looks for the Lease.
func leases(t *testing.T, r matrix.Rendered) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, d := range all[*appsv1.Deployment](t, r) {
		if c := d.Spec.Template.Spec.Containers[0]; c.Name == "controller" {
			found["the controller"] = argument(c.Args, "-lease-namespace=") + "/" + argument(c.Args, "-lease-name=")
		}
	}
	for _, role := range all[*rbacv1.Role](t, r) {
		who := "the Role of the " + role.Labels["app.kubernetes.io/component"]
		for _, rule := range role.Rules {
			if slices.Contains(rule.Resources, "leases") && len(rule.ResourceNames) > 0 {
				found[who] = role.Namespace + "/" + strings.Join(rule.ResourceNames, ",")
			}
		}
	}
	for _, m := range all[*corev1.ConfigMap](t, r) {
		for key, text := range m.Data {
			var config struct {
				Kueue struct {
					AdmissionLease struct{ Namespace, Name string }
				}
			}
			if err := yaml.Unmarshal([]byte(text), &config); err != nil {
				t.Fatalf("%s: %v", m.Name, err)
			}
			at := config.Kueue.AdmissionLease
			found["the ConfigMap "+m.Name+", "+key] = at.Namespace + "/" + at.Name
		}
	}
	if len(found) != 5 {
		t.Errorf("%d parts were found, want controller, two Roles and two ConfigMaps: %v", len(found), found)
	}
	return found
}

func argument(args []string, prefix string) string {
	for _, arg := range args {
		if value, ok := strings.CutPrefix(arg, prefix); ok {
			return value
		}
	}
	return ""
}

// TestAdapterConfig has the adapter itself read each configuration that the chart makes.
func TestAdapterConfig(t *testing.T) {
	certificates := writeCertificate(t)
	check := func(t *testing.T, r matrix.Rendered, own bool) {
		t.Helper()
		for _, m := range all[*corev1.ConfigMap](t, r) {
			text, ok := m.Data["config.yaml"]
			if !ok {
				continue
			}
			file := filepath.Join(t.TempDir(), "config.yaml")
			text = strings.ReplaceAll(text, "/etc/dispatch-hook-tls", certificates)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := run(t, "dispatch-hook", "-validate", "-config="+file)
			if own && strings.Contains(out, "policy: is missing") {
				continue // for a program with a hook of its own, which this one has not
			}
			if err != nil {
				t.Errorf("%v: %s\n%s", err, out, text)
			}
		}
	}
	each(t, func(t *testing.T, r rendering) {
		check(t, r.Rendered, matrix.Object(r.Values).At("adapter", "policy") == nil && r.Name == "nulls")
	})
	for i, c := range leaseCases()[:10] {
		t.Run(fmt.Sprintf("Lease%d", i), func(t *testing.T) {
			r, err := render(t, matrix.Case{Release: c.release, Namespace: c.namespace, Values: map[string]any{
				"lease": map[string]any{"namespace": c.leaseNamespace, "name": c.leaseName},
				"adapter": map[string]any{
					"mode": "Deployment", "tls": map[string]any{"issuerRef": map[string]any{"name": "ca"}},
					"startGate": map[string]any{"localQueue": c.leaseName, "namespace": c.namespace},
				},
			}})
			if err != nil {
				t.Fatal(err)
			}
			check(t, r, false)
		})
	}
}

// writeCertificate makes what a Secret of cert-manager holds, and returns its folder.
func writeCertificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"adapter"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, content := range map[string][]byte{
		"tls.crt": certificate, "ca.crt": certificate, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}
