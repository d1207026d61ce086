package ctl

import (
	"errors"
	"fmt"
	"os"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// access says which cluster to talk to.
type access struct {
	kubeconfig, context string
	// namespace is empty unless it was given.
	namespace string
}

// requestTimeout bounds each request, so that a cluster that is gone is told.
const requestTimeout = 30 * time.Second

// addAccess gives a command the flags that say which cluster to talk to.
func (c *cli) addAccess(cmd *cobra.Command, namespaced bool) {
	flags := cmd.Flags()
	flags.StringVar(&c.access.kubeconfig, "kubeconfig", "", "`path` of a kubeconfig; empty: $KUBECONFIG, then ~/.kube/config, then the in-cluster configuration")
	flags.StringVar(&c.access.context, "context", "", "`name` of a context of the kubeconfig; empty: its current context")
	if namespaced {
		flags.StringVarP(&c.access.namespace, "namespace", "n", "", "`namespace` to look in; empty: that of the context")
	}
}

// cluster is a connection to a cluster.
type cluster struct {
	config *rest.Config
	client client.Client
	// namespace is the one given, or that of the context.
	namespace string
}

// connect sets up a connection; nothing is sent yet but what discovery needs.
func (c *cli) connect() (*cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.access.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{
		CurrentContext: c.access.context, Context: clientcmdapi.Context{Namespace: c.access.namespace},
	})
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, c.access.explain(err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, c.access.explain(err)
	}
	config.UserAgent = Name + "/" + c.build.Version
	config.Timeout = requestTimeout
	config.QPS, config.Burst = -1, -1
	config.WarningHandler = rest.NewWarningWriter(c.Err, rest.WarningWriterOptions{Deduplicate: true})
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	api, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, c.access.explain(err)
	}
	return &cluster{config: config, client: api, namespace: namespace}, nil
}

// explain says which flag an unusable configuration came from, and the way out.
func (a access) explain(err error) error {
	env := os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
	switch {
	case clientcmd.IsEmptyConfig(err) && env != "":
		return fmt.Errorf("$%s %s names no cluster; give --kubeconfig, or unset it in a pod", clientcmd.RecommendedConfigPathEnvVar, env)
	case clientcmd.IsEmptyConfig(err):
		return errors.New("no cluster to talk to: give --kubeconfig, set $" + clientcmd.RecommendedConfigPathEnvVar + ", or run in a pod")
	case a.context != "":
		return fmt.Errorf("--context %q: %w; kubectl config get-contexts lists those that exist", a.context, err)
	case a.kubeconfig != "":
		return fmt.Errorf("--kubeconfig %s: %w", a.kubeconfig, err)
	case env != "":
		return fmt.Errorf("$%s: %w", clientcmd.RecommendedConfigPathEnvVar, err)
	}
	return err
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(
		clientgoscheme.AddToScheme(scheme), kueue.AddToScheme(scheme), trainer.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("setting up the scheme: %w", err)
	}
	return scheme, nil
}

// served turns the absence of an API into what to install.
func served(err error, what string) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("the cluster does not serve %s: %w", what, err)
	}
	return err
}
