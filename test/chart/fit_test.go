package chart

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/dispatch-admission/dispatch-admission/test/chart/matrix"
)

// selects tells whether a selector matches labels; an empty one, which would match
// everything, is none that the chart may render.
func selects(t *testing.T, owner string, selector *metav1.LabelSelector, set map[string]string) bool {
	t.Helper()
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil || s.Empty() {
		t.Fatalf("%s: the selector is %v, %v", owner, selector, err)
	}
	return s.Matches(labels.Set(set))
}

// TestServices: each leads to the pods of exactly one Deployment, and to ports that they have.
func TestServices(t *testing.T) {
	each(t, func(t *testing.T, r rendering) {
		for _, s := range all[*corev1.Service](t, r.Rendered) {
			var found []corev1.PodSpec
			for _, p := range podTemplates(t, r.Rendered) {
				if selects(t, s.Name, &metav1.LabelSelector{MatchLabels: s.Spec.Selector}, p.meta.Labels) {
					found = append(found, p.spec)
				}
			}
			if len(found) != 1 {
				t.Errorf("Service %s: selects %d kinds of pods, want 1", s.Name, len(found))
				continue
			}
			for _, port := range s.Spec.Ports {
				if port.TargetPort.Type != intstr.String || containerPort(found[0], port.TargetPort.StrVal) == 0 {
					t.Errorf("Service %s: its pods have no port named %q", s.Name, port.TargetPort.String())
				}
			}
		}
	})
}

// containerPort is the number of a named port of a pod, 0 if it has none.
func containerPort(spec corev1.PodSpec, name string) int32 {
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, p := range c.Ports {
			if p.Name == name {
				return p.ContainerPort
			}
		}
	}
	return 0
}

// TestServiceMonitors: each selects exactly one Service, with a port for each endpoint.
func TestServiceMonitors(t *testing.T) {
	monitors := 0
	each(t, func(t *testing.T, r rendering) {
		for _, o := range r.Objects {
			if o.Text("kind") != "ServiceMonitor" {
				continue
			}
			monitors++
			checkMonitor(t, r, o)
		}
	})
	if monitors == 0 {
		t.Error("no ServiceMonitor was found: this test looks at nothing")
	}
}

func checkMonitor(t *testing.T, r rendering, o matrix.Object) {
	t.Helper()
	match := map[string]string{}
	for key, value := range o.At("spec", "selector", "matchLabels").(map[string]any) {
		match[key] = value.(string)
	}
	namespaces := o.At("spec", "namespaceSelector", "matchNames").([]any)
	var found []*corev1.Service
	for _, s := range all[*corev1.Service](t, r.Rendered) {
		if slices.Contains(namespaces, any(s.Namespace)) && selects(t, o.String(), &metav1.LabelSelector{MatchLabels: match}, s.Labels) {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%s: selects %d Services, want 1", o, len(found))
	}
	for _, e := range o.At("spec", "endpoints").([]any) {
		port := e.(map[string]any)["port"].(string)
		if !slices.ContainsFunc(found[0].Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == port }) {
			t.Errorf("%s: Service %s has no port %s", o, found[0].Name, port)
		}
	}
}

// TestDisruptionBudgets: each protects exactly one Deployment, of more than one replica.
func TestDisruptionBudgets(t *testing.T) {
	each(t, func(t *testing.T, r rendering) {
		for _, b := range all[*policyv1.PodDisruptionBudget](t, r.Rendered) {
			found := 0
			for _, d := range all[*appsv1.Deployment](t, r.Rendered) {
				if !selects(t, b.Name, b.Spec.Selector, d.Spec.Template.Labels) {
					continue
				}
				found++
				if d.Spec.Replicas != nil && *d.Spec.Replicas < 2 {
					t.Errorf("PodDisruptionBudget %s: %s has %d replicas, so no node of theirs could be drained", b.Name, d.Name, *d.Spec.Replicas)
				}
			}
			for _, p := range podTemplates(t, r.Rendered) {
				if !strings.HasPrefix(p.owner, "Deployment ") && selects(t, b.Name, b.Spec.Selector, p.meta.Labels) {
					t.Errorf("PodDisruptionBudget %s: protects %s", b.Name, p.owner)
				}
			}
			if found != 1 {
				t.Errorf("PodDisruptionBudget %s: protects %d Deployments, want 1", b.Name, found)
			}
		}
	})
}

// TestNetworkPolicies: where there are any, each is of some pods, and all pods have one.
func TestNetworkPolicies(t *testing.T) {
	each(t, func(t *testing.T, r rendering) {
		policies := all[*networkingv1.NetworkPolicy](t, r.Rendered)
		if len(policies) == 0 {
			return
		}
		pods := podTemplates(t, r.Rendered)
		covered := map[string]bool{}
		for _, n := range policies {
			found := false
			for _, p := range pods {
				if selects(t, n.Name, &n.Spec.PodSelector, p.meta.Labels) {
					found, covered[p.owner] = true, true
					checkIngress(t, n, p)
				}
			}
			if !found {
				t.Errorf("NetworkPolicy %s: is of no pod", n.Name)
			}
		}
		for _, p := range pods {
			if !covered[p.owner] {
				t.Errorf("%s: no NetworkPolicy is of its pods", p.owner)
			}
		}
	})
}

// checkIngress wants every port that is let in to be one that the pod has.
func checkIngress(t *testing.T, n *networkingv1.NetworkPolicy, p podTemplate) {
	t.Helper()
	var has []int32
	for _, c := range p.containers() {
		for _, port := range c.Ports {
			has = append(has, port.ContainerPort)
		}
	}
	for _, rule := range n.Spec.Ingress {
		for _, port := range rule.Ports {
			if !slices.Contains(has, port.Port.IntVal) {
				t.Errorf("NetworkPolicy %s: lets in to port %s, which %s does not have", n.Name, port.Port, p.owner)
			}
		}
	}
}

// TestPods: what server-side apply refuses, and what refers to nothing.
func TestPods(t *testing.T) {
	each(t, func(t *testing.T, r rendering) {
		accounts := []string{"default"}
		for _, a := range all[*corev1.ServiceAccount](t, r.Rendered) {
			accounts = append(accounts, a.Name)
		}
		for _, p := range podTemplates(t, r.Rendered) {
			checkPod(t, p)
			if !slices.Contains(accounts, p.spec.ServiceAccountName) {
				t.Errorf("%s: runs as %q, which is not there", p.owner, p.spec.ServiceAccountName)
			}
		}
	})
}

func checkPod(t *testing.T, p podTemplate) {
	t.Helper()
	seen := map[string]bool{}
	once := func(what string) {
		t.Helper()
		if seen[what] {
			t.Errorf("%s: %s is there twice", p.owner, what)
		}
		seen[what] = true
	}
	for _, v := range p.spec.Volumes {
		once("volume " + v.Name)
	}
	for _, c := range p.containers() {
		once("container " + c.Name)
		for _, e := range c.Env {
			once("env " + c.Name + "/" + e.Name)
		}
		for _, port := range c.Ports {
			once("port " + port.Name)
			once("port " + (&intstr.IntOrString{IntVal: port.ContainerPort}).String())
		}
		for _, m := range c.VolumeMounts {
			once("mount " + c.Name + m.MountPath)
			if !seen["volume "+m.Name] {
				t.Errorf("%s: %s mounts %s, which is no volume", p.owner, c.Name, m.Name)
			}
		}
		for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
			if probe != nil && !seen["port "+probe.HTTPGet.Port.StrVal] {
				t.Errorf("%s: %s is probed on %q, which is no port", p.owner, c.Name, probe.HTTPGet.Port.StrVal)
			}
		}
	}
}

// TestPodSecurity has the API server's own code look at every pod.
func TestPodSecurity(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}
	looked := 0
	each(t, func(t *testing.T, r rendering) {
		for _, p := range podTemplates(t, r.Rendered) {
			result := policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &p.meta, &p.spec))
			if !result.Allowed && !r.OwnSecurity {
				t.Errorf("%s: %s", p.owner, result.ForbiddenDetail())
			}
			if result.Allowed && r.OwnSecurity {
				t.Errorf("%s: is restricted although its values say otherwise: does this test look at anything?", p.owner)
			}
			looked++
		}
	})
	if looked == 0 {
		t.Error("no pod was looked at")
	}
}
