// Package lock is a node's part in the locks and leases of its mesh: it votes (as an acceptor of Paxos does), and asks the others for their votes on
// behalf of clients and jobs (as a proposer does). It does no I/O and knows no jobs: its [Host] has the clocks, the log and the connections, and
// [Jobs] says of the owners of locks what they say themselves. The table of locks lies in the store that it shares with the engine.
//
// A lock is had with the votes of more than half of all known nodes. A node votes for one holder at a time, and for none by a token that
// isn't greater than what it has seen. module/DESIGN.md, section 4, has the messages, the invariants, and why two majorities meet; it is to be
// read first.
//
//   - node.go: what the package needs of others, and what a node remembers;
//   - table.go: the table of locks: taking and freeing, ends of leases, fencing tokens, what is logged and loaded, LOCK.CLEAR;
//   - acquisition.go: asking for a lock, and waiting in line for it; round.go: asking all nodes once, and counting;
//   - vote.go: giving a vote and taking it back; raised.go: what a vote goes back to; unlock.go: votes that others are still to take back;
//   - promise.go: what is remembered on disk of votes, so that a node that lost some knows for how long it must abstain;
//   - recovery.go: a node that may lack votes abstains, and learns them from the others; meshes that meet;
//   - dispute.go: locks of which others tell different holders; orphan.go: votes that stand for nothing any more.
//
// Only package engine makes a Node. Methods that change something are events as the engine's own: the caller takes the engine's effects
// afterwards.
package lock
