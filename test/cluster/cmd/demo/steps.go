package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/dispatch-admission/dispatch-admission/test/cluster"
)

const (
	release   = "dispatch-admission"
	namespace = "dispatch-system"
	patience  = time.Minute
)

// demo is the stage: a cluster and what has been shown so far.
type demo struct {
	c    *cluster.Cluster
	step int
}

func run(ctx context.Context, keep bool) (err error) {
	d := &demo{}
	programs, err := os.MkdirTemp("", "dispatch-demo-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(programs) }()
	d.say("A Kubernetes control plane on this machine",
		"etcd, the API server, Kueue, JobSet and Trainer run as plain processes on loopback.",
		"The first time they are built from source, which takes a while; later it is a matter of seconds.")
	if err := build(ctx, programs); err != nil {
		return err
	}
	if d.c, err = cluster.Start(ctx, cluster.Config{Progress: os.Stdout, Programs: map[string]string{release: programs}}); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			fmt.Printf("\nWhat the gate logged:\n%s", d.log("controller"))
		}
		fmt.Println("\nStopping what was started.")
		if stopErr := d.c.Stop(); err == nil {
			err = stopErr
		}
	}()
	steps := []func(context.Context) error{d.install, d.submit, d.release, d.evict, d.restart, d.addPolicy, d.hold, d.letGo, d.refuse}
	if !keep {
		steps = append(steps, d.uninstall)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	d.say("That was it",
		"A went from 1 to 2 before the second start, so a rank that survived the first start cannot pass",
		"for one of the second. A policy of three rules held one job, placed it and refused another, each time",
		"with a reason that the job's owner can read.")
	if keep {
		fmt.Printf("\nThe gate goes on. To look around:\n\n  export KUBECONFIG=%s\n\nPress Ctrl-C to stop.\n", d.c.Kubeconfig())
		<-ctx.Done()
	}
	return nil
}

// install puts the chart and a queue in place.
func (d *demo) install(ctx context.Context) error {
	d.say("A queue, and the chart that guards it",
		"The chart brings the controller with the adapter beside it, an AdmissionCheck, and a Job that puts the check",
		"into the ClusterQueue once it is served. From then on a job starts only when the check says Ready. The nodes",
		"here are simulated, but the pods of the chart really run, as processes with the rights of their ServiceAccounts.")
	if err := d.c.Apply(ctx, queues); err != nil {
		return err
	}
	// One replica and a brisk Lease, so that the demo need not wait for the one that a
	// gate left behind.
	if err := d.helm(ctx, "install", release, chart, "--create-namespace", "--wait", "--set", "clusterQueues.attach.names={training}",
		"--set", "controller.replicas=1,lease.duration=3s,lease.renewDeadline=2s,lease.retryPeriod=500ms"); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "-n", namespace, "get", "pods"); err != nil {
		return err
	}
	return d.kubectl(ctx, "get", "admissionchecks,clusterqueues", "-o", "custom-columns=KIND:.kind,NAME:.metadata.name,ACTIVE:.status.conditions[?(@.type==\"Active\")].status,CHECKS:.spec.admissionChecksStrategy.admissionChecks[*].name")
}

// submit shows that nothing starts while the gate is away.
func (d *demo) submit(ctx context.Context) error {
	d.say("Two jobs arrive while the gate is away",
		"One TrainJob is dispatch's (its name says so), one is somebody else's. Kueue reserves quota for both.",
		"Nobody answers the check now, so both are held: nothing starts ungated.")
	if err := d.scale(ctx, 0); err != nil {
		return err
	}
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
	d.say("The gate is back: Pending becomes Ready",
		"For dispatch's TrainJob it first raises the admission count A to 1 and only then answers Ready.",
		"Somebody else's TrainJob is none of its business and passes as it is.")
	if err := d.scale(ctx, 1); err != nil {
		return err
	}
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
	for line := range strings.Lines(d.log("controller")) {
		if strings.Contains(line, "leading") || strings.Contains(line, "raised the admission count") {
			fmt.Print("  ", line)
		}
	}
	return nil
}

// uninstall shows the end of the gate, with a job that runs.
func (d *demo) uninstall(ctx context.Context) error {
	d.say("The gate is uninstalled",
		"Kueue does not notice that a check is being deleted: its jobs would wait for ever. So a Job of the chart first",
		"stops the queue, takes the check out and leaves the queue stopped. What runs goes on, nothing starts ungated,",
		"and the log says how to open the queue again.")
	if err := d.helm(ctx, "uninstall", release); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "get", "clusterqueues", "-o", "custom-columns=NAME:.metadata.name,STOPPED:.spec.stopPolicy,CHECKS:.spec.admissionChecksStrategy.admissionChecks[*].name"); err != nil {
		return err
	}
	return d.pods(ctx)
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

// chart is the directory of the chart.
var chart = filepath.Join(root(), "charts", "dispatch-admission")

// build compiles the programs of the image.
func build(ctx context.Context, into string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", into+"/", "./cmd/...")
	cmd.Dir, cmd.Env = root(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the programs: %w: %s", err, out)
	}
	return nil
}

// helm runs Helm on the release and shows the command; what it prints is for a terminal
// of its own.
func (d *demo) helm(ctx context.Context, args ...string) error {
	args = append(args, "--namespace", namespace)
	fmt.Println("  $ helm", shown(args))
	_, err := d.output(ctx, "helm", args...)
	return err
}

// scale changes the number of replicas of the gate and waits until they are there.
func (d *demo) scale(ctx context.Context, replicas int) error {
	if err := d.kubectl(ctx, "-n", namespace, "scale", "deployment", release, fmt.Sprintf("--replicas=%d", replicas)); err != nil {
		return err
	}
	phases := strings.TrimSpace(strings.Repeat("true true ", replicas)) // of the controller and of the adapter
	return d.await(ctx, phases, "-n", namespace, "get", "pods", "-o", "jsonpath={.items[*].status.initContainerStatuses[*].ready} {.items[*].status.containerStatuses[*].ready}")
}

// log is what the containers of the gate of a name have logged.
func (d *demo) log(container string) string {
	files, err := filepath.Glob(filepath.Join(d.c.Dir(), "logs", "pods", namespace+"_"+release+"-*_"+container+".log"))
	if err != nil {
		return err.Error()
	}
	var text strings.Builder
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err.Error()
		}
		text.Write(data)
	}
	return text.String()
}
