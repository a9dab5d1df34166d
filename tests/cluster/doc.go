// Package cluster tests meshes of real servers from outside: membership, copies and
// handovers, bad input, and at-most-once jobs, unique jobs, families and locks over
// nodes. In faults_test.go and found_test.go nodes are killed and stopped under load. In
// netns_test.go they are cut off from each other, which needs root; else it is skipped.
package cluster
