// Package release makes what a release of the project consists of: the container
// image with the programs, the list of what went into them, and the notes. Two
// runs on the same commit with the same Go make the same bytes, wherever they run.
// See docs/releasing.md.
package release
