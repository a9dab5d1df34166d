// Package cluster tests meshes of real servers from outside: who is in a mesh, copies
// and their moving, what bad input meets, and jobs that exist once, families and locks
// over nodes. In faults_test.go and found_test.go nodes are killed and stopped under
// load, in netns_test.go cut off from each other (which needs root; else it is skipped).
package cluster
