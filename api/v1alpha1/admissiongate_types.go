package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AdmissionGateKind is the kind that spec.parameters of an AdmissionCheck names.
const AdmissionGateKind = "AdmissionGate"

// GateReady is the condition of an AdmissionGate that says whether checks that
// refer to it are served.
const GateReady = "Ready"

// AdmissionGate says how the checks that refer to it by spec.parameters treat the
// Workloads that wait for them: when a restarted job may start, and which hook is
// asked about each attempt. Kueue limits the names in spec.parameters, so the
// name of a gate is a DNS label of at most 63 characters.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.status.endpoint`,description="Where the hook is asked"
// +kubebuilder:printcolumn:name="Policy",type=string,JSONPath=`.spec.hook.failurePolicy`,description="What holds when the hook gives no verdict"
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.hook.mode`,description="Whether the hook decides or is only recorded"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether checks that refer to the gate are served"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",message="metadata.name must be a lower-case DNS label of at most 63 characters: spec.parameters of an AdmissionCheck can name no other"
type AdmissionGate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the operator wants.
	//
	// +optional
	// +kubebuilder:default={}
	Spec AdmissionGateSpec `json:"spec,omitzero"`

	// status is what the controller found.
	//
	// +optional
	Status AdmissionGateStatus `json:"status,omitzero"`
}

// AdmissionGateList is a list of AdmissionGates.
//
// +kubebuilder:object:root=true
type AdmissionGateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []AdmissionGate `json:"items"`
}

// AdmissionGateSpec is what the operator wants of a gate.
type AdmissionGateSpec struct {
	// readmission says when a job that ran before may start again.
	//
	// +optional
	// +kubebuilder:default={}
	Readmission Readmission `json:"readmission,omitzero"`

	// hook is asked about every attempt; without it the gate only fences
	// restarts.
	//
	// +optional
	Hook *Hook `json:"hook,omitempty"`
}

// Readmission says when a job that ran before may start again.
type Readmission struct {
	// waitForPods keeps the gate of a TrainJob of dispatch closed until no pod of
	// an earlier start is left that is neither Succeeded nor Failed, and none can
	// appear any more. Without it the pods of two starts may run side by side for
	// a whole termination grace period.
	//
	// +optional
	// +kubebuilder:default=true
	WaitForPods *bool `json:"waitForPods,omitempty"`

	// podTimeout is how long waitForPods keeps the gate closed: a duration above
	// 0s. After that it opens all the same, with an event, because the admission
	// count still tells the starts apart.
	//
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="must be a duration above 0s, such as 10m; set waitForPods to false to wait for no pod"
	PodTimeout *metav1.Duration `json:"podTimeout,omitempty"`

	// onUngated says what happens to a job that Kueue started although its
	// admission count was not raised for that start: Report tells it by an event,
	// a log line and a metric, Evict also has the job start again, gated.
	//
	// +optional
	// +kubebuilder:default=Report
	OnUngated OnUngated `json:"onUngated,omitempty"`
}

// OnUngated says what happens to a start that the gate missed.
//
// +kubebuilder:validation:Enum=Report;Evict
type OnUngated string

// What happens to a start that the gate missed.
const (
	// OnUngatedReport tells it by an event, a log line and a metric. A wrong
	// eviction can cost days of training.
	OnUngatedReport OnUngated = "Report"
	// OnUngatedEvict tells it and has Kueue evict the job.
	OnUngatedEvict OnUngated = "Evict"
)

// AdmissionGateStatus is what the controller found.
type AdmissionGateStatus struct {
	// observedGeneration is the generation of the spec that the rest is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions has Ready: whether checks that refer to the gate are served.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// endpoint is where the hook is asked, for people to read.
	//
	// +optional
	Endpoint string `json:"endpoint,omitempty"`

	// breaker is the state of the hook's breaker: Closed while the hook is asked,
	// Open while it is skipped. Not set without a hook.
	//
	// +optional
	Breaker BreakerState `json:"breaker,omitempty"`

	// lastError is why the hook gave no verdict when it was last skipped or asked
	// in vain, in at most 1024 characters; not set once it answered again.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	LastError string `json:"lastError,omitempty"`
}

// BreakerState is the state of a hook's breaker.
//
// +kubebuilder:validation:Enum=Closed;Open
type BreakerState string

// The states of a hook's breaker.
const (
	BreakerClosed BreakerState = "Closed"
	BreakerOpen   BreakerState = "Open"
)
