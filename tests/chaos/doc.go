// Package chaos tests meshes of real servers under random faults, and accounts
// for every job. It knows nothing of the module but its documentation.
//
// A plan is drawn from a seed: how the mesh is made, and which faults come when
// (plan_test.go). The test carries it out (mesh_test.go) while clients add and
// fetch jobs of every kind (clients_test.go) and keep the books: what they asked, when,
// and what they were answered (account_test.go). After a round of faults all is
// healed, the queues are drained, and the books are judged (judge_test.go).
//
//	make chaos TIME=30m NODES=5 SEED=7 FAULTS=kill,rewrite
//
// A finding shows its history, the seed, and where the servers' logs and
// append-only files are. The same seed plays the same faults; what the clients
// do meanwhile differs.
//
// Between the nodes stands a proxy for each of them (net_test.go), so partitions need
// no rights: the proxy knows by /proc whose connection it has. In some plans each
// node is a master with Redis replicas, watched by a Sentinel or not (roles_test.go);
// in others each server has a wall clock that steps.
//
// # Promises
//
// A loss is an event by which a node may lose the last that it did, up to 2.5 seconds:
// kill -9 with appendfsync everysec, or the promotion of a replica while its master takes
// commands, or after kill -9 of the master. These aren't losses: kill -9 with appendfsync
// always, SHUTDOWN, FAILOVER.
//
//	a job, once its ID was answered   is delivered, unless its
//	REPLICATE n                       n nodes, each with a loss just then
//	REPLICATE n ASYNC                 node had a loss just then
//	DELAY                             the same, and never before its delay
//	TTL                               the same, unless its time is over; not much later
//	RETRY 0                           round had any fault; never twice. Where all nodes
//	                                  have appendfsync always, and no role changes, one is
//	                                  lost only with an answer of GETJOB that didn't come;
//	                                  one that may have been delivered, as its node or the
//	                                  one it was handed over to ended, is shown as uncertain
//	AFTER, BLOCKEDBY                  parents fell so; never before they are done
//	DEFERRED                          the same, and never before its release
//
//	two jobs with one key
//	UNIQUE before-processing          aren't both accepted before one is asked for
//	UNIQUE until-processed            ... before one is acknowledged
//	UNIQUE window                     ... within its time
//	UNIQUE during-processing          aren't both processed, within RETRY or RUNTTL from
//	                                  the delivery or the last WORKING
//
//	a lock                            has one holder within its time, counted from before
//	                                  LOCK.ACQUIRE, and greater tokens for later ones
//
//	a node                            after every start knows the job that was in
//	                                  its log before, and logs the next one
//	a mesh, once it is healed         is whole within a minute, takes and serves
//	                                  every kind of job, and keeps nothing; two minutes
//	                                  and a half where clocks step. A vote for the
//	                                  lock of a job that is done may stay until somebody
//	                                  wants the key, who gets it
//
// Clocks that step change retries, delays, TTLs and windows, but no lock, and lose
// nothing. Duplicates of at-least-once jobs are counted, not judged.
package chaos
