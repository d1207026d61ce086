package app

import (
	"bytes"
	"errors"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

func TestParseConfigDefaults(t *testing.T) {
	got, err := ParseConfig([]string{"--identity", "me"})
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		LeaseNamespace: "dispatch-system", LeaseName: "dispatch-admission", Identity: "me",
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Resync: time.Minute, Workers: 16, QPS: 200, Burst: 400,
		MetricsAddress: ":8080", ProbeAddress: ":8081", LogLevel: "info", LogFormat: "text",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseConfigIdentity(t *testing.T) {
	first, err := ParseConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	second, err := ParseConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	host, suffix, found := strings.Cut(first.Identity, "_")
	if !found || host == "" || suffix == "" || first.Identity == second.Identity {
		t.Errorf("identities %q and %q, want the host name, _ and a random suffix", first.Identity, second.Identity)
	}
}

func TestParseConfigQueues(t *testing.T) {
	got, err := ParseConfig([]string{"-queues=b,a, b", "-queue-checks=c", "-queue-on-flavors=f2", "-queue-on-flavors=f1", "-mend-queues"})
	if err != nil {
		t.Fatal(err)
	}
	want := wiring.Wanted{Queues: []string{"a", "b"}, Checks: []string{"c"}, OnFlavors: []string{"f1", "f2"}}
	if diff := cmp.Diff(want, got.Wanted); diff != "" || !got.Mend {
		t.Errorf("%s, mend %v", diff, got.Mend)
	}
}

func TestParseConfigAccepts(t *testing.T) {
	for _, args := range [][]string{
		{"-in-cluster"}, {"-in-cluster=false", "-kubeconfig=x"}, {"--kube-api-qps=-1", "--kube-api-burst=-1"},
		{"-kube-api-qps=0.5"}, {"-metrics-bind-address=0", "-health-probe-bind-address=[::1]:0"},
		{"-lease-duration=2s", "-renew-deadline=1.5s", "-retry-period=1s"}, {"-log-level=debug", "-log-format=json"},
		{"-queues=", "-queue-selector=", "-queue-checks=", "-queue-on-flavors="}, {"-queue-selector=team in (a,b)", "-queue-checks=c", "-mend-queues"}, {"-queues=a", "-queue-selector=b", "-queue-checks=c"},
		{"-lease-name=a.b", "-lease-namespace=x"}, {"-workers=1", "-resync=1ns"}, {"-version", "-workers=0"},
	} {
		if _, err := ParseConfig(args); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestParseConfigRefuses(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"-nonsense"}, "-nonsense"},
		{[]string{"-workers"}, "-workers"},
		{[]string{"-resync=1"}, "-resync"},
		{[]string{"-resync=0s"}, "-resync 0s: must be greater than 0"},
		{[]string{"-retry-period=-1s"}, "-retry-period -1s: must be greater than 0"},
		{[]string{"-lease-duration=500ms", "-renew-deadline=400ms", "-retry-period=100ms"}, "-lease-duration 500ms: must be a whole number of seconds"},
		{[]string{"-lease-duration=1900ms", "-renew-deadline=1800ms", "-retry-period=1s"}, "-lease-duration 1.9s: must be a whole number of seconds"},
		{[]string{"-lease-duration=10s"}, "-lease-duration 10s: must be greater than -renew-deadline 10s"},
		{[]string{"-retry-period=9s"}, "-renew-deadline 10s: must be greater than 1.2 times -retry-period 9s"},
		{[]string{"-workers=-1"}, "-workers -1: must be at least 1"},
		{[]string{"-kube-api-qps=-2"}, "-kube-api-qps -2"},
		{[]string{"-kube-api-qps=NaN"}, "-kube-api-qps NaN"},
		{[]string{"-kube-api-qps=+Inf"}, "-kube-api-qps +Inf"},
		{[]string{"-kube-api-burst=-2"}, "-kube-api-burst -2"},
		{[]string{"-metrics-bind-address="}, "-metrics-bind-address"},
		{[]string{"-metrics-bind-address=:http"}, "-metrics-bind-address"},
		{[]string{"-health-probe-bind-address=:-1"}, "-health-probe-bind-address"},
		{[]string{"-log-level=INFO"}, "-log-level"},
		{[]string{"-log-format="}, "-log-format"},
		{[]string{"-lease-namespace=a.b"}, "-lease-namespace"},
		{[]string{"-lease-name=A"}, "-lease-name"},
		{[]string{"-queues=a,B"}, `"B" is no name`},
		{[]string{"-queues=a,,b", "-queue-checks=c"}, `"" is no name`},
		{[]string{"-queue-selector=team in", "-queue-checks=c"}, "-queue-selector"},
		{[]string{"-queues=a"}, "-queue-checks is missing"},
		{[]string{"-queue-checks=c"}, "-queue-checks needs -queues or -queue-selector"},
		{[]string{"-queue-on-flavors=f"}, "-queue-on-flavors needs -queues or -queue-selector"},
		{[]string{"-mend-queues"}, "-mend-queues needs -queues or -queue-selector"},
		{[]string{"-in-cluster", "-kubeconfig=x"}, "-in-cluster conflicts with -kubeconfig"},
		{[]string{"-in-cluster", "-context=x"}, "-in-cluster conflicts with -context"},
		{[]string{"serve"}, `"serve"`},
	} {
		_, err := ParseConfig(tc.args)
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") || !errors.Is(err, errUsage) {
			t.Errorf("%q: error %v, want one line with %q", tc.args, err, tc.want)
		}
	}
}

func TestControllerWithoutCluster(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	for name, tc := range map[string]struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		"help":    {[]string{"-h"}, 0, "-lease-duration", ""},
		"version": {[]string{"-version"}, 0, "dispatch-admission ", ""},
		"usage":   {[]string{"-nonsense"}, 2, "", "dispatch-admission: flag provided but not defined: -nonsense"},
		"fault":   {[]string{"-kubeconfig=/nowhere"}, 1, "", "dispatch-admission: -kubeconfig /nowhere: "},
		"context": {[]string{"-context=x"}, 1, "", `dispatch-admission: -context "x": there is no kubeconfig`},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := Controller(t.Context(), tc.args, &stdout, &stderr); code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			if !strings.Contains(stdout.String(), tc.stdout) || !strings.HasPrefix(stderr.String(), tc.stderr) {
				t.Errorf("standard output %q, standard error %q", &stdout, &stderr)
			}
		})
	}
}

func TestUsageNamesEveryFlagOfTheSpecification(t *testing.T) {
	text := Usage()
	_, fs := newFlags()
	fs.VisitAll(func(f *flag.Flag) {
		if f.Usage == "" || !strings.Contains(text, "-"+f.Name) {
			t.Errorf("-%s is not explained", f.Name)
		}
	})
}

func TestEnding(t *testing.T) {
	fault := errors.New("no cache")
	for name, tc := range map[string]struct {
		asked, elected bool
		err, want      error
	}{
		"stopped":               {asked: true, elected: true},
		"stopped, with a fault": {asked: true, err: fault},
		"lost the lease":        {elected: true, err: fault, want: errLostLease},
		"ended by itself":       {want: errLostLease},
		"never led":             {err: fault, want: fault},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ending(tc.asked, tc.elected, tc.err); !errors.Is(got, tc.want) || got != nil && tc.want == nil {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}
