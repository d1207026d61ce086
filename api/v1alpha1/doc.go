// Package v1alpha1 holds the names that dispatch-admission shares with Kueue,
// Trainer and dispatch. They are a contract: an operator reads them in a
// cluster, a dispatcher compares them, and none of them is configurable.
package v1alpha1
