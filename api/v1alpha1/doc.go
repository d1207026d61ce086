// Package v1alpha1 holds AdmissionGate, by which an operator says what a check
// does, and the names that dispatch-admission shares with Kueue, Trainer and
// dispatch. The names are a contract: an operator reads them in a cluster, a
// dispatcher compares them, and none of them is configurable.
//
// +kubebuilder:object:generate=true
// +groupName=dispatch.phpboyscout.uk
package v1alpha1
