package v1alpha1

const (
	// GroupName is the API group of the project's custom resources.
	GroupName = "dispatch.phpboyscout.uk"

	// ControllerName is the spec.controllerName of every AdmissionCheck that
	// the readmission gate answers, whatever the check's own name is.
	ControllerName = "dispatch.phpboyscout.uk/admission"

	// DispatchManager is the manager of the runtime patch by which dispatch
	// marks a TrainJob as its own.
	DispatchManager = "dispatch.phpboyscout.uk/adapter"

	// AdmissionManager is the manager of the runtime patch that the gate
	// writes into a TrainJob. Nobody else writes that entry.
	AdmissionManager = "dispatch.phpboyscout.uk/admission"

	// AdmissionCountAnnotation is the pod annotation that carries the
	// admission count A, a decimal integer of at least 1.
	AdmissionCountAnnotation = "dispatch.phpboyscout.uk/admission-count"

	// AdmissionAttemptAnnotation is the pod annotation that names the attempt
	// A was raised for. It stands beside the count because Kueue's typed
	// update of a TrainJob drops fields that its own types do not know, but
	// keeps pod template annotations.
	AdmissionAttemptAnnotation = "dispatch.phpboyscout.uk/admission-attempt"

	// ServiceAccountAnnotation and PriorityClassAnnotation are pod annotations by
	// which the gate passes on what a hook chose. The MutatingAdmissionPolicy of
	// the chart turns them into fields of the pod; Kueue has no way to.
	ServiceAccountAnnotation = "dispatch.phpboyscout.uk/service-account"
	PriorityClassAnnotation  = "dispatch.phpboyscout.uk/priority-class"

	// PodPolicyName is the name of that MutatingAdmissionPolicy and of its
	// binding. There is one in a cluster, whatever the releases are called.
	PodPolicyName = "pods.dispatch.phpboyscout.uk"

	// HoldAnnotation is the annotation of a Workload that keeps, for each check
	// whose hook holds it, since when and how often it has been offered.
	HoldAnnotation = "dispatch.phpboyscout.uk/hold"

	// WorkloadHeld and WorkloadRefused are conditions of a Workload that say what
	// a hook decided. Kueue overwrites the messages of checks, but not these.
	WorkloadHeld    = "dispatch.phpboyscout.uk/Held"
	WorkloadRefused = "dispatch.phpboyscout.uk/Refused"

	// KeepDetachedAnnotation is the annotation of an AdmissionCheck of ours that
	// names the ClusterQueues, with commas between, that people have taken it out
	// of: the controller neither puts it back nor calls it lost. KeepAllDetached
	// stands for every queue.
	KeepDetachedAnnotation = "dispatch.phpboyscout.uk/keep-detached"
	KeepAllDetached        = "*"

	// DefaultLeaseNamespace and DefaultLeaseName name the leader election
	// Lease unless flags say otherwise.
	DefaultLeaseNamespace = "dispatch-system"
	DefaultLeaseName      = "dispatch-admission"
)
