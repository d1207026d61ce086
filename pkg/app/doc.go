// Package app is the door to the programs: each is one function from arguments
// to an exit code. A main calls it, tests call it, and whoever builds a program
// of his own calls it.
package app
