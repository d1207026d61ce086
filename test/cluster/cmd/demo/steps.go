package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/dispatch-admission/dispatch-admission/test/cluster"
)

const (
	release   = "dispatch-admission"
	namespace = "dispatch-system"
	patience  = time.Minute
)

// demo is the stage: a cluster and the gate as a process beside it.
type demo struct {
	c       *cluster.Cluster
	program string
	gate    *exec.Cmd
	log     *os.File
	step    int
}

func run(ctx context.Context, keep bool) (err error) {
	d := &demo{}
	d.say("A Kubernetes control plane on this machine",
		"etcd, the API server, Kueue, JobSet and Trainer run as plain processes on loopback.",
		"The first time they are built from source, which takes a while; later it is a matter of seconds.")
	if d.c, err = cluster.Start(ctx, cluster.Config{Progress: os.Stdout}); err != nil {
		return err
	}
	defer func() {
		d.stopGate()
		if err != nil {
			d.showLog()
		}
		fmt.Println("\nStopping what was started.")
		if stopErr := d.c.Stop(); err == nil {
			err = stopErr
		}
	}()
	for _, step := range []func(context.Context) error{d.install, d.submit, d.release, d.evict, d.restart} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	d.say("That was it",
		"A went from 1 to 2 before the second start, so a rank that survived the first start cannot pass",
		"for one of the second. The gate wrote twice per start: the count into the TrainJob, then Ready.")
	if keep {
		fmt.Printf("\n  export KUBECONFIG=%s\n\nPress Ctrl-C to stop.\n", d.c.Kubeconfig())
		<-ctx.Done()
	}
	return nil
}

// install puts the chart, a queue and the gate in place.
func (d *demo) install(ctx context.Context) error {
	d.say("The chart, and a queue that the gate guards",
		"The chart brings the rights and an AdmissionCheck. A ClusterQueue that names the check lets a job",
		"start only when the check says Ready. The nodes here are simulated and run no containers, so the gate",
		"runs as a process of this demo, with the chart's ServiceAccount and its rights.")
	if err := d.c.Apply(ctx, queues); err != nil {
		return err
	}
	chart := filepath.Join(root(), "charts", "dispatch-admission")
	if err := d.shell(ctx, "helm", "install", release, chart, "--namespace", namespace, "--create-namespace", "--set", "replicaCount=0", "--wait=false"); err != nil {
		return err
	}
	if err := d.build(ctx); err != nil {
		return err
	}
	if err := d.startGate(ctx); err != nil {
		return err
	}
	if err := d.await(ctx, "training True", "get", "clusterqueue", "training", "-o", `jsonpath={.metadata.name}{" "}{.status.conditions[?(@.type=="Active")].status}`); err != nil {
		return err
	}
	return d.kubectl(ctx, "get", "admissionchecks,clusterqueues", "-o", "custom-columns=KIND:.kind,NAME:.metadata.name,ACTIVE:.status.conditions[?(@.type==\"Active\")].status,REASON:.status.conditions[?(@.type==\"Active\")].reason")
}

// submit shows that nothing starts while the gate is away.
func (d *demo) submit(ctx context.Context) error {
	d.stopGate()
	d.say("Two jobs arrive while the gate is away",
		"One TrainJob is dispatch's (its name says so), one is somebody else's. Kueue reserves quota for both.",
		"Nobody answers the check now, so both are held: nothing starts ungated.")
	if err := d.c.Apply(ctx, fmt.Sprintf(trainJob, ours, "", 2)+"---\n"+fmt.Sprintf(trainJob, theirs, "", 1)); err != nil {
		return err
	}
	if err := d.await(ctx, "Pending Pending", "-n", "research", "get", "workloads", "-o", "jsonpath={.items[*].status.admissionChecks[*].state}"); err != nil {
		return err
	}
	return d.workloads(ctx)
}

// release shows the first start.
func (d *demo) release(ctx context.Context) error {
	if err := d.startGate(ctx); err != nil {
		return err
	}
	d.say("The gate is back: Pending becomes Ready",
		"For dispatch's TrainJob it first raises the admission count A to 1 and only then answers Ready.",
		"Somebody else's TrainJob is none of its business and passes as it is.")
	if err := d.awaitPods(ctx, ours, "1 1"); err != nil {
		return err
	}
	if err := d.awaitPods(ctx, theirs, "<none>"); err != nil {
		return err
	}
	if err := d.workloads(ctx); err != nil {
		return err
	}
	return d.pods(ctx)
}

// evict shows the end of the first start.
func (d *demo) evict(ctx context.Context) error {
	d.say("An urgent job needs the quota: Kueue evicts",
		"Kueue takes the quota from the lower priority, suspends that TrainJob and sets its check back to Pending.")
	if err := d.c.Apply(ctx, fmt.Sprintf(trainJob, urgent, ", kueue.x-k8s.io/priority-class: urgent", 3)); err != nil {
		return err
	}
	if err := d.awaitPods(ctx, ours, ""); err != nil {
		return err
	}
	if err := d.awaitPods(ctx, urgent, "<none> <none> <none>"); err != nil {
		return err
	}
	return d.workloads(ctx)
}

// restart shows the second start.
func (d *demo) restart(ctx context.Context) error {
	d.say("The urgent job is gone: the second start",
		"The same TrainJob starts again under the same names. Before that the gate raises A to 2.")
	if err := d.kubectl(ctx, "-n", "research", "delete", "trainjob", urgent); err != nil {
		return err
	}
	if err := d.awaitPods(ctx, ours, "2 2"); err != nil {
		return err
	}
	if err := d.workloads(ctx); err != nil {
		return err
	}
	if err := d.pods(ctx); err != nil {
		return err
	}
	fmt.Println("\nWhat the gate logged of it:")
	out, err := os.ReadFile(d.log.Name())
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "leading") || strings.Contains(line, "raised the admission count") {
			fmt.Print("  ", line)
		}
	}
	return err
}

func (d *demo) workloads(ctx context.Context) error {
	return d.kubectl(ctx, "-n", "research", "get", "workloads", "-o", "custom-columns=TRAINJOB:.metadata.ownerReferences[0].name,"+
		"QUOTA:.status.conditions[?(@.type==\"QuotaReserved\")].status,ADMITTED:.status.conditions[?(@.type==\"Admitted\")].status,"+
		"CHECK:.status.admissionChecks[0].state,WHY:.status.admissionChecks[0].message")
}

func (d *demo) pods(ctx context.Context) error {
	return d.kubectl(ctx, "-n", "research", "get", "pods", "-o", "custom-columns=POD:.metadata.name,PHASE:.status.phase,A:"+countPath)
}

const countPath = `.metadata.annotations.dispatch\.phpboyscout\.uk/admission-count`

// build compiles the gate.
func (d *demo) build(ctx context.Context) error {
	d.program = filepath.Join(d.c.Dir(), "dispatch-admission")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", d.program, "./cmd/dispatch-admission")
	cmd.Dir, cmd.Env = root(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the gate: %w: %s", err, out)
	}
	return nil
}

// startGate starts the gate with the rights of the chart's ServiceAccount.
func (d *demo) startGate(ctx context.Context) error {
	kubeconfig, err := d.c.ServiceAccountKubeconfig(ctx, namespace, release)
	if err != nil {
		return err
	}
	if d.log == nil {
		if d.log, err = os.Create(filepath.Join(d.c.Dir(), "gate.log")); err != nil {
			return err
		}
	}
	// The timing is brisk, so that the demo need not wait for the Lease that the
	// gate of the step before left behind.
	d.gate = exec.Command(d.program, "-kubeconfig", kubeconfig, "-metrics-bind-address=0", "-health-probe-bind-address=0",
		"-lease-duration=3s", "-renew-deadline=2s", "-retry-period=500ms")
	d.gate.Stderr = d.log
	if err := d.gate.Start(); err != nil {
		return fmt.Errorf("starting the gate: %w", err)
	}
	return nil
}

// showLog prints what the gate logged, before a failed demo takes its log away.
func (d *demo) showLog() {
	if d.log == nil {
		return
	}
	if out, err := os.ReadFile(d.log.Name()); err == nil {
		fmt.Printf("\nThe log of the gate:\n%s", out)
	}
}

func (d *demo) stopGate() {
	if d.gate == nil {
		return
	}
	_ = d.gate.Process.Signal(syscall.SIGTERM)
	_ = d.gate.Wait()
	d.gate = nil
}
