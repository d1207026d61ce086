package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// restConfig finds the API server: an explicit kubeconfig, then $KUBECONFIG,
// then the in-cluster configuration.
func restConfig(c Config) (*rest.Config, error) {
	cfg, err := loadConfig(c)
	if err != nil {
		return nil, err
	}
	cfg.QPS, cfg.Burst = float32(c.QPS), c.Burst
	if c.QPS == -1 || c.Burst == -1 {
		cfg.QPS, cfg.Burst = -1, -1
	}
	cfg.UserAgent = "dispatch-admission/" + version().Version
	return cfg, nil
}

func loadConfig(c Config) (*rest.Config, error) {
	env := os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
	if c.InCluster || c.Kubeconfig == "" && env == "" {
		if c.Context != "" {
			return nil, fmt.Errorf("-context %q: there is no kubeconfig; give -kubeconfig or set $%s", c.Context, clientcmd.RecommendedConfigPathEnvVar)
		}
		cfg, err := rest.InClusterConfig()
		if err != nil && !c.InCluster {
			return nil, fmt.Errorf("no kubeconfig (-kubeconfig, $%s) and no in-cluster configuration: %w", clientcmd.RecommendedConfigPathEnvVar, err)
		}
		if err != nil {
			return nil, fmt.Errorf("-in-cluster: %w", err)
		}
		return cfg, nil
	}
	source := "-kubeconfig " + c.Kubeconfig
	if c.Kubeconfig == "" {
		source = "$" + clientcmd.RecommendedConfigPathEnvVar + " " + env
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.Context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	return cfg, nil
}

// requirement is an API that the controller cannot do without.
type requirement struct{ groupVersion, hint string }

var requirements = []requirement{
	{"kueue.x-k8s.io/v1beta2", "install Kueue v0.17 or newer"},
	{"trainer.kubeflow.org/v1alpha1", "install Kubeflow Trainer v2.2 or newer"},
	{v1alpha1.GroupVersion.String(), "install the CustomResourceDefinition admissiongates." + v1alpha1.GroupName + ", which comes with the chart"},
}

// probeTimeout bounds each request of probe.
const probeTimeout = 10 * time.Second

// probe asks the API server once for what the controller needs, so that a wrong
// address or a missing API ends the program with one clear line.
func probe(ctx context.Context, cfg *rest.Config) error {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = probeTimeout
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	for _, r := range requirements {
		err := client.RESTClient().Get().AbsPath("/apis/" + r.groupVersion).Do(ctx).Error()
		var status *apierrors.StatusError
		switch {
		case errors.As(err, &status) && status.Status().Code == http.StatusNotFound:
			return fmt.Errorf("API server %s does not serve %s: %s", cfg.Host, r.groupVersion, r.hint)
		case err != nil:
			return fmt.Errorf("API server %s: %w", cfg.Host, err)
		}
	}
	return nil
}
