// Package entries is what all nodes of a mesh are to know alike, however small: settings of queues, pauses, and recurring jobs. It does
// no I/O, and doesn't know what the entries mean.
//
// An entry has a key and a value. Each change of it has a [Stamp], greater than all stamps that its node has seen. The
// value with the greatest stamp wins, everywhere: so nodes that have heard of the same changes have the same
// entries, in whatever order they heard of them. An entry counts as a whole: its parts were checked together, and a
// mixture of two could contradict itself. A deleted entry leaves a tombstone, which wins likewise, so that a node that
// was away doesn't bring the entry back.
//
// To find what differs, two nodes compare sums of their entries: 16 sums at first, then those of the parts that differ
// ([Table.Sums], [Table.In]). A difference in one of 10,000 entries is found with a few hundred bytes.
package entries
