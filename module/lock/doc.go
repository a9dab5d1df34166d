// Package lock is a node's part in the locks and leases of its mesh. The node votes, as an acceptor of Paxos does. It
// also asks the others for their votes on behalf of clients and jobs, as a proposer does. The package does no I/O and
// knows no jobs: its [Host] has the clocks, the log and the connections, and [Jobs] speaks for the jobs that have
// locks. The table of locks is in the store, which the engine shares.
//
// A holder gets a lock by the votes of more than half of all known nodes. A node votes for one holder at a time, and
// never for a new holder by a token that isn't greater than those of its votes for this lock before. Read module/DESIGN.md, section 4, first:
// it has the messages, the invariants, and why two majorities meet.
//
//   - node.go: what the package needs of others, and what a node remembers;
//   - table.go: the table of locks: taking and freeing, ends of leases, fencing tokens, what is logged and loaded,
//     LOCK.CLEAR;
//   - acquisition.go: asking for a lock, and waiting in line for it; round.go: asking all nodes once, and counting;
//   - vote.go: giving a vote and taking it back; raised.go: what a vote falls back to; unlock.go: votes that others are
//     still to take back;
//   - promise.go: what the disk remembers of votes, so that a node that lost some knows for how long it must abstain;
//   - recovery.go: a node that may lack votes abstains, and learns them from the others; meshes that meet;
//   - dispute.go: locks for which others name different holders; orphan.go: votes that stand for nothing any more;
//   - errors.go: what clients are refused with.
//
// Only package engine makes a Node, and the tests of this package: scripts (testdata), which package locktest plays, and
// random walks. Methods that change something are events, like the engine's own: the caller takes the engine's effects
// afterwards.
package lock
