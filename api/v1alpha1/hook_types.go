package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Hook says which hook is asked and what becomes of its answers.
type Hook struct {
	// endpoint is where the hook is asked.
	//
	// +required
	Endpoint Endpoint `json:"endpoint"`

	// timeout is the deadline of one call, 100ms to 30s.
	//
	// +optional
	// +kubebuilder:default="2s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) >= duration('100ms') && duration(self) <= duration('30s')",message="must be a duration from 100ms to 30s, such as 2s"
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// failurePolicy says what holds when the hook gives no verdict: Hold keeps
	// the job waiting, Admit lets it start unchanged, marked as such.
	//
	// +optional
	// +kubebuilder:default=Hold
	FailurePolicy FailurePolicy `json:"failurePolicy,omitempty"`

	// breaker says when a failing hook is skipped for a while.
	//
	// +optional
	// +kubebuilder:default={}
	Breaker Breaker `json:"breaker,omitzero"`

	// hold says how a held job waits.
	//
	// +optional
	// +kubebuilder:default={}
	Hold Hold `json:"hold,omitzero"`

	// mode says whether the hook decides. Audit asks it and records what it
	// answers, but always admits, unchanged.
	//
	// +optional
	// +kubebuilder:default=Enforce
	Mode Mode `json:"mode,omitempty"`

	// allowlist limits what the hook may choose.
	//
	// +optional
	Allowlist Allowlist `json:"allowlist,omitzero"`

	// attempt says where the names of an attempt come from.
	//
	// +optional
	Attempt AttemptNames `json:"attempt,omitzero"`
}

// Endpoint is where a hook is asked: exactly one of UnixSocket and URL.
//
// +kubebuilder:validation:XValidation:rule="has(self.unixSocket) != has(self.url)",message="exactly one of unixSocket and url must be set"
// +kubebuilder:validation:XValidation:rule="!has(self.caBundle) || has(self.url) && self.url.startsWith('https://')",message="is for an https url only; leave it out",fieldPath=".caBundle"
// +kubebuilder:validation:XValidation:rule="!has(self.serverName) || has(self.url) && self.url.startsWith('https://')",message="is for an https url only; leave it out",fieldPath=".serverName"
// +kubebuilder:validation:XValidation:rule="!has(self.clientCertificateSecret) || has(self.url) && self.url.startsWith('https://')",message="is for an https url only; leave it out",fieldPath=".clientCertificateSecret"
type Endpoint struct {
	// unixSocket is the absolute path of a socket in the controller's file
	// system, shared with a sidecar. At most 107 bytes.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=107
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="must be an absolute path, such as /run/hook/hook.sock"
	UnixSocket string `json:"unixSocket,omitempty"`

	// url is the base of the hook's server, to which /v1/admit is added: https,
	// or http to localhost or a loopback address, which is a sidecar.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && (self.matches('^https://[^/:]') || self.matches('^http://(localhost|127([.](25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])){3}|[[]::1[]])(:[0-9]+)?(/.*)?$'))",message="must be a URL with a host that begins with https://, such as https://hook.example.com:8443; http:// is for localhost and loopback addresses only"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[?#]') && !self.matches('^[^/]*//[^/]*@')",message="must not have a user, a query or a fragment; clientCertificateSecret is how the controller shows who it is"
	// +kubebuilder:validation:XValidation:rule="!self.matches('/v1/admit/*$')",message="must not end with /v1/admit, which is added to it"
	URL string `json:"url,omitempty"`

	// caBundle holds PEM certificates, one of which the server's certificate must
	// go back to; without it those of the system. For an https url only.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1048576
	CABundle []byte `json:"caBundle,omitempty"`

	// serverName is the name in the server's certificate; without it the host of
	// the url. For an https url only.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ServerName string `json:"serverName,omitempty"`

	// clientCertificateSecret names a Secret of the type kubernetes.io/tls, in the
	// namespace of the controller's Lease, with the certificate that the
	// controller shows to the server. For an https url only. The controller needs
	// the right to read it; the chart's hookClientCertificates gives it.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="must be the name of a Secret: lower-case letters, digits, '-' and '.'"
	ClientCertificateSecret string `json:"clientCertificateSecret,omitempty"`
}

// FailurePolicy says what holds when a hook gives no verdict.
//
// +kubebuilder:validation:Enum=Hold;Admit
type FailurePolicy string

// What holds when a hook gives no verdict.
const (
	// FailurePolicyHold fails closed: the job waits and the hook is asked again.
	FailurePolicyHold FailurePolicy = "Hold"
	// FailurePolicyAdmit fails open: the job starts unchanged.
	FailurePolicyAdmit FailurePolicy = "Admit"
)

// Mode says whether a hook decides.
//
// +kubebuilder:validation:Enum=Enforce;Audit
type Mode string

// Whether a hook decides.
const (
	// ModeEnforce does what the hook answers.
	ModeEnforce Mode = "Enforce"
	// ModeAudit records what the hook answers and admits.
	ModeAudit Mode = "Audit"
)

// Breaker says when a failing hook is skipped.
type Breaker struct {
	// failures in a row open the breaker, 1 to 1000: errors, timeouts and panics.
	// An answer, whatever it is, is none.
	//
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Failures int32 `json:"failures,omitempty"`

	// cooldown is how long the hook is skipped before one call probes it, 1s to
	// 1h.
	//
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="must be a duration from 1s to 1h, such as 30s"
	Cooldown *metav1.Duration `json:"cooldown,omitempty"`
}

// Hold says how a held job waits.
type Hold struct {
	// reofferInterval is the time between two offers at first, 1s to 5m; it
	// doubles up to 5m, each time with a jitter of up to a tenth.
	//
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('5m')",message="must be a duration from 1s to 5m, such as 30s"
	ReofferInterval *metav1.Duration `json:"reofferInterval,omitempty"`

	// keepQuotaFor is how long a held job may sit on reserved quota that others
	// wait for, counted from when it was first held; at most 24h. 0s gives it back
	// at once.
	//
	// +optional
	// +kubebuilder:default="1m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+)$') && duration(self) <= duration('24h')",message="must be a duration of at most 24h, such as 1m; 0s gives the quota back at once"
	KeepQuotaFor *metav1.Duration `json:"keepQuotaFor,omitempty"`

	// window is how long a job may be held from its first Hold on, at most 87600h.
	// When the hook holds it after that, the job is refused with the hook's
	// reason. 0s means for ever.
	//
	// +optional
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+)$') && duration(self) <= duration('87600h')",message="must be a duration of at most 87600h, such as 24h; 0s means for ever"
	Window *metav1.Duration `json:"window,omitempty"`
}

// Allowlist limits what a hook may choose. A list that is not set is no rule; an
// empty one allows nothing.
type Allowlist struct {
	// priorityClasses are the priority classes that the hook may give to pods, at
	// most 256. Not set or null: any. Empty: none.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="must be the name of a PriorityClass: lower-case letters, digits, '-' and '.'"
	PriorityClasses []string `json:"priorityClasses,omitzero"`

	// serviceAccounts are the service accounts that the hook may give to pods, at
	// most 256. Not set or null: any. Empty: none.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="must be the name of a ServiceAccount: lower-case letters, digits, '-' and '.'"
	ServiceAccounts []string `json:"serviceAccounts,omitzero"`
}

// AttemptNames says where the names of an attempt come from. What is not set, and
// what a job does not have, gets its default.
type AttemptNames struct {
	// tenantID is by default the namespace of the job.
	//
	// +optional
	TenantID *NameSource `json:"tenantID,omitempty"`

	// dagID is by default the part dj-<ULID> of the name of dispatch's TrainJob,
	// else the name of the job.
	//
	// +optional
	DagID *NameSource `json:"dagID,omitempty"`

	// runID is by default the part s<N> of the name of dispatch's TrainJob, else
	// the UID of the job.
	//
	// +optional
	RunID *NameSource `json:"runID,omitempty"`

	// taskID is by default the name of the main pod set.
	//
	// +optional
	TaskID *NameSource `json:"taskID,omitempty"`
}

// NameSource is a label or an annotation of the main pod set's pods, or else of
// the Workload: exactly one.
//
// +kubebuilder:validation:XValidation:rule="has(self.label) != has(self.annotation)",message="exactly one of label and annotation must be set"
type NameSource struct {
	// label is the key of a label, such as example.com/tenant.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="!format.qualifiedName().validate(self).hasValue()",message="must be the key of a label, such as example.com/tenant"
	Label string `json:"label,omitempty"`

	// annotation is the key of an annotation, such as example.com/tenant.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="!format.qualifiedName().validate(self.lowerAscii()).hasValue()",message="must be the key of an annotation, such as example.com/tenant"
	Annotation string `json:"annotation,omitempty"`
}
