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

	// DefaultLeaseNamespace and DefaultLeaseName name the leader election
	// Lease unless flags say otherwise.
	DefaultLeaseNamespace = "dispatch-system"
	DefaultLeaseName      = "dispatch-admission"
)
