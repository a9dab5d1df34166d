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
// # What is promised
//
// A loss is the end of a node by which the last that it did, up to 2.5 seconds,
// may not be in its log: kill -9 with appendfsync everysec, not with always.
//
//	a job, once its ID was answered   is delivered, unless its
//	REPLICATE n                       n nodes, each with a loss just then
//	REPLICATE n ASYNC                 node had a loss just then
//	DELAY                             the same, and never before its delay
//	RETRY 0                           round had any fault; never twice
//
//	a node                            after every start knows the job that was in
//	                                  its log before, and logs the next one
//	a mesh, once it is healed         is whole within a minute, takes and serves
//	                                  every kind of job, and keeps nothing
package chaos
