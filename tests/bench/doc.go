// Command bench compares jobmesh with what a user would otherwise take on the
// same redis-server: streams with a consumer group, and lists. It starts the
// server it needs, runs the systems in turn, several rounds, and prints the
// medians.
//
// The figure to look at is server CPU: user and system time of the server's
// process, per operation. Other load on the machine changes it far less than
// jobs per second, which is printed beside it. Each figure is also shown as a
// ratio to that of streams.
//
//	add    ADDJOB q body 0            XADD s * b body                     LPUSH l body
//	get    GETJOB NOHANG FROM q       XREADGROUP … COUNT 1 STREAMS s >    LMOVE l p RIGHT LEFT
//	ack    ACKJOB id                  XACK s g id, XDEL s id              LREM p -1 body
//	cycle  the three of them, one after the other
//
// LREM looks for its element from the end, where the oldest lies, so lists are
// shown at their best.
//
// Memory is the growth of used_memory over a million jobs, waiting and then
// delivered; for jobmesh the Go heap stands beside it.
//
// With -scale it fills the server with ten million jobs, and shows the same
// figures there, the slowest command on the way, and what a BGSAVE does to
// latency, beside a server without jobs.
//
// With -uq it compares the unique queue with the same in Lua, on a list, a set and
// a list of times (lua/unique_queue.lua), as resque-uniqueue keeps them.
//
// With -unique it shows what uniqueness costs ADDJOB and GETJOB, with -locks what
// LOCK.ACQUIRE and LOCK.RELEASE do on one node and on three.
//
// With -bulk it compares ADDJOBS with ADDJOB, on one node and with copies on three. Each turn begins with memory that
// was in use before, so that new pages, which are dear on some machines, don't count.
//
// With -life it shows what the options cost that say what becomes of a job: giving it back, dead letters, priorities,
// limits, and recurring jobs.
//
// With -slowest it fills a server with a million jobs (-memory), 100,000 queues, waits
// and locks, does what concerns all of them, and shows for how long each of these kept
// the main thread at a time: no more than 5 ms, except for the server's own work (a fork,
// or writes that the AOF has put off), and for work that a command's arguments ask for
// (COMMANDS.md). -only chooses sections. As root it sees each turn of the event loop, also
// where the machine has other things to do.
//
// With -against it compares this build of the module with another, by turns; with -life as well, it compares what
// failure costs.
//
// With -mesh it starts three nodes and shows what a job costs there: CPU over
// all of them, bytes between them, and how long it takes from one to another.
package main
