package commands

import "jobmesh/rm"

const since = "1.0.0"

// Arguments that several commands have.
func keyArg() rm.Arg { return rm.Arg{Name: "queue", Kind: rm.ArgKey} }
func idArgs(optional bool) []rm.Arg {
	return []rm.Arg{{Name: "job", Kind: rm.ArgOneOf, Multiple: true, Optional: optional, Sub: idOrName()}}
}

// idOrName returns the two ways to name a job.
func idOrName() []rm.Arg {
	return []rm.Arg{{Name: "job-id", Kind: rm.ArgString}, {Name: "name", Kind: rm.ArgString, Token: "NAME"}}
}
func word(token string) rm.Arg {
	return rm.Arg{Name: token, Kind: rm.ArgToken, Token: token, Optional: true}
}
func number(token, name string) rm.Arg {
	return rm.Arg{Name: name, Kind: rm.ArgInteger, Token: token, Optional: true}
}

// settingArgs returns the arguments for a queue or pattern, and for settings, with or
// without their values.
func settingArgs(values bool) []rm.Arg {
	option := rm.Arg{Name: "option", Kind: rm.ArgString, Multiple: true, Optional: true}
	if values {
		option = rm.Arg{Name: "setting", Kind: rm.ArgBlock, Multiple: true, Sub: []rm.Arg{{Name: "option", Kind: rm.ArgString}, {Name: "value", Kind: rm.ArgString}}}
	}
	return []rm.Arg{{Name: "queue-or-pattern", Kind: rm.ArgString}, option}
}
func cronNames() []rm.Arg {
	return []rm.Arg{{Name: "name", Kind: rm.ArgString, Multiple: true}}
}
func firstKey(flags uint64) []rm.KeySpec { return []rm.KeySpec{{Flags: flags, Position: 1, Step: 1}} }

// jobArgs returns the options of a new job.
func jobArgs() []rm.Arg {
	return []rm.Arg{
		number("REPLICATE", "count"), number("DELAY", "seconds"), number("AT", "unix-seconds"), number("RETRY", "seconds"), number("TTL", "seconds"), number("MAXLEN", "count"), number("PRIORITY", "priority"), word("ASYNC"),
		{Name: "unique", Kind: rm.ArgString, Token: "UNIQUE", Optional: true}, {Name: "key", Kind: rm.ArgString, Token: "KEY", Optional: true},
		{Name: "scope", Kind: rm.ArgString, Token: "SCOPE", Optional: true}, number("LIMIT", "count"), number("LOCKTTL", "seconds"), number("RUNTTL", "seconds"),
		{Name: "onconflict", Kind: rm.ArgString, Token: "ONCONFLICT", Optional: true}, {Name: "onbusy", Kind: rm.ArgString, Token: "ONBUSY", Optional: true},
		{Name: "quorum", Kind: rm.ArgString, Token: "QUORUM", Optional: true},
		word("DEFERRED"), {Name: "blocking-id", Kind: rm.ArgString, Token: "BLOCKEDBY", Optional: true},
		{Name: "after-id", Kind: rm.ArgString, Token: "AFTER", Optional: true, Multiple: true},
		{Name: "on-dead", Kind: rm.ArgOneOf, Token: "ONDEAD", Optional: true, Sub: []rm.Arg{
			{Name: "run", Kind: rm.ArgToken, Token: "run"}, {Name: "drop", Kind: rm.ArgToken, Token: "drop"}, {Name: "dead", Kind: rm.ArgToken, Token: "dead"}}},
		{Name: "backoff", Kind: rm.ArgBlock, Token: "BACKOFF", Optional: true, Sub: []rm.Arg{
			{Name: "base", Kind: rm.ArgInteger}, {Name: "max", Kind: rm.ArgInteger}, number("JITTER", "percent")}},
		number("MAXNACKS", "count"), number("MAXDELIVERIES", "count"), number("MAXLAPSES", "count"), {Name: "dead-queue", Kind: rm.ArgString, Token: "DEAD", Optional: true}, number("DEADTTL", "seconds"),
		{Name: "on-expire", Kind: rm.ArgOneOf, Token: "ONEXPIRE", Optional: true, Sub: []rm.Arg{
			{Name: "drop", Kind: rm.ArgToken, Token: "drop"}, {Name: "dead", Kind: rm.ArgToken, Token: "dead"}}},
		number("KEEP", "seconds"),
	}
}

// commands returns the table of all commands. COMMANDS.md states the same facts.
func (m *module) commands() []rm.Command {
	return []rm.Command{
		{Name: "addjob", Run: m.addJob, Flags: "write deny-oom fast", Categories: "write fast", Info: rm.Info{
			Summary: "Adds a job to a queue.", Complexity: "O(1)", Since: since, Arity: -4, Keys: firstKey(rm.KeyInsert),
			Args: append([]rm.Arg{keyArg(), {Name: "body", Kind: rm.ArgString}, {Name: "ms-timeout", Kind: rm.ArgInteger},
				{Name: "name", Kind: rm.ArgString, Token: "NAME", Optional: true}}, jobArgs()...),
		}},
		{Name: "addjobs", Run: m.addJobs, Flags: "write deny-oom", Categories: "write slow", Info: rm.Info{
			Summary: "Adds several jobs to a queue, with the same options.", Complexity: "O(N) with N jobs", Since: since, Arity: -5, Keys: firstKey(rm.KeyInsert),
			Args: append(append([]rm.Arg{keyArg(), {Name: "ms-timeout", Kind: rm.ArgInteger}}, jobArgs()...), rm.Arg{
				Name: "jobs", Kind: rm.ArgOneOf, Sub: []rm.Arg{
					{Name: "body", Kind: rm.ArgString, Token: "BODIES", Multiple: true},
					{Name: "pair", Kind: rm.ArgBlock, Token: "PAIRS", Multiple: true, Sub: []rm.Arg{{Name: "key", Kind: rm.ArgString}, {Name: "body", Kind: rm.ArgString}}}}}),
		}},
		{Name: "getjob", Run: m.getJob, Flags: "write blocking", Categories: "write slow blocking", Info: rm.Info{
			Summary: "Takes jobs from queues, waiting for one where there is none.", Complexity: "O(N) with N jobs taken and queues named", Since: since, Arity: -2,
			Keys: []rm.KeySpec{{Flags: rm.KeyModify, Keyword: "FROM", Position: 1, Last: -1, Step: 1}}, Tips: "nondeterministic_output",
			Args: []rm.Arg{word("NOHANG"), number("TIMEOUT", "milliseconds"), number("COUNT", "count"), word("WITHCOUNTERS"), word("WITHTOKEN"), word("WITHINFO"), number("LEASE", "seconds"),
				{Name: "worker", Kind: rm.ArgString, Token: "WORKER", Optional: true},
				{Name: "queue", Kind: rm.ArgKey, Token: "FROM", Multiple: true}},
		}},
		{Name: "ackjob", Run: m.ackJob, Flags: "write fast", Categories: "write fast", Info: rm.Info{
			Summary: "Acknowledges jobs: they are done. Keeps their result.", Complexity: "O(N) with N job IDs", Since: since, Arity: -1,
			Args: append(idArgs(true), rm.Arg{Name: "data", Kind: rm.ArgString, Token: "RESULT", Optional: true}, number("KEEP", "seconds"))}},
		{Name: "fastack", Run: m.fastAck, Flags: "write fast", Categories: "write fast", Info: rm.Info{
			Summary: "Acknowledges jobs without making sure that every node learns of it.", Complexity: "O(N) with N job IDs", Since: since, Arity: -1, Args: idArgs(true)}},
		{Name: "deljob", Run: m.deleteJob, Flags: "write fast", Categories: "write fast", Info: rm.Info{
			Summary: "Deletes jobs from this node.", Complexity: "O(N) with N job IDs", Since: since, Arity: -1, Args: idArgs(true)}},
		{Name: "releasejob", Run: m.releaseJob, Flags: "write deny-oom blocking", Categories: "write fast blocking", Info: rm.Info{
			Summary: "Releases a deferred job: it is queued before those that it blocks, or after them.", Complexity: "O(N) with N blocked jobs, with LAST; else O(1)", Since: since, Arity: -2,
			Keys: []rm.KeySpec{{Flags: rm.KeyInsert, Keyword: "QUEUE", Position: 2, Step: 1}},
			Args: []rm.Arg{{Name: "job-id", Kind: rm.ArgString}, {Name: "queue", Kind: rm.ArgKey, Token: "QUEUE", Optional: true}, word("LAST")}}},
		{Name: "waitcopies", Run: m.waitCopies, Flags: "write blocking", Categories: "write slow blocking", Info: rm.Info{
			Summary: "Waits until jobs have their copies.", Complexity: "O(N) with N jobs", Since: since, Arity: -3, Args: append(idArgs(false),
				rm.Arg{Name: "ms-timeout", Kind: rm.ArgInteger}, rm.Arg{Name: "copies", Kind: rm.ArgInteger, Token: "COPIES", Optional: true})}},
		{Name: "waitjob", Run: m.waitJob, Flags: "readonly blocking", Categories: "read slow blocking", Info: rm.Info{
			Summary: "Waits until jobs have ended, and tells how.", Complexity: "O(N) with N jobs, at each node", Since: since, Arity: -3, Args: append(idArgs(false),
				rm.Arg{Name: "ms-timeout", Kind: rm.ArgInteger}, word("ANY"))}},
		{Name: "canceljob", Run: m.cancelJob, Flags: "write", Categories: "write slow", Info: rm.Info{
			Summary: "Deletes jobs from all nodes, and those that go with them, or asks their workers to stop.", Complexity: "O(N) with N jobs deleted", Since: since, Arity: -2,
			Args: append(idArgs(false), word("SOFT"), rm.Arg{Name: "reason", Kind: rm.ArgString, Token: "REASON", Optional: true})}},
		{Name: "enqueue", Run: m.enqueue, Flags: "write deny-oom fast", Categories: "write fast", Info: rm.Info{
			Summary: "Queues jobs that are not queued.", Complexity: "O(N log M) with N job IDs and M waiting jobs", Since: since, Arity: -1, Args: append(idArgs(true), word("UNSTARTED"))}},
		{Name: "nack", Run: m.nack, Flags: "write deny-oom fast", Categories: "write fast", Info: rm.Info{
			Summary: "Gives jobs back as not done: they are queued again, at once or later, or become dead letters.", Complexity: "O(N log M) with N job IDs and M waiting jobs", Since: since, Arity: -1,
			Args: append(idArgs(true), rm.Arg{Name: "when", Kind: rm.ArgOneOf, Optional: true, Sub: []rm.Arg{
				{Name: "seconds", Kind: rm.ArgInteger, Token: "DELAY"}, {Name: "dead", Kind: rm.ArgToken, Token: "DEAD"}}},
				rm.Arg{Name: "reason", Kind: rm.ArgString, Token: "REASON", Optional: true},
				rm.Arg{Name: "body", Kind: rm.ArgString, Token: "BODY", Optional: true})}},
		{Name: "movejob", Run: m.moveJob, Flags: "write deny-oom blocking", Categories: "write slow blocking", Info: rm.Info{
			Summary: "Moves jobs to another queue, or dead letters back to where they came from.", Complexity: "O(N log M) with N jobs moved and M waiting jobs, at each node that is asked", Since: since, Arity: -2,
			Keys: []rm.KeySpec{{Flags: rm.KeyModify, Keyword: "FROM", Position: 1, Step: 1}, {Flags: rm.KeyInsert, Keyword: "TO", Position: 1, Step: 1}},
			Args: []rm.Arg{{Name: "jobs", Kind: rm.ArgOneOf, Sub: []rm.Arg{
				{Name: "job", Kind: rm.ArgOneOf, Multiple: true, Sub: idOrName()},
				{Name: "several", Kind: rm.ArgBlock, Sub: []rm.Arg{{Name: "queue", Kind: rm.ArgKey, Token: "FROM"}, number("COUNT", "count")}}}},
				{Name: "to", Kind: rm.ArgKey, Token: "TO", Optional: true}, number("PRIORITY", "priority"), number("AT", "unix-seconds"), word("MESH"), number("TIMEOUT", "milliseconds")}}},
		{Name: "dequeue", Run: m.dequeue, Flags: "write fast", Categories: "write fast", Info: rm.Info{
			Summary: "Takes jobs out of their queues without delivering them.", Complexity: "O(N) with N job IDs", Since: since, Arity: -1, Args: idArgs(true)}},
		{Name: "working", Run: m.working, Flags: "write fast", Categories: "write fast", Info: rm.Info{
			Summary: "Postpones the next delivery of jobs that are being worked on, and notes how far they are.", Complexity: "O(N) with N job IDs", Since: since, Arity: -2,
			Args: append(idArgs(false), rm.Arg{Name: "text", Kind: rm.ArgString, Token: "PROGRESS", Optional: true})}},
		{Name: "show", Run: m.showJob, Flags: "readonly fast", Categories: "read fast", Info: rm.Info{
			Summary: "Describes a job.", Complexity: "O(1)", Since: since, Arity: -2, Args: []rm.Arg{{Name: "job", Kind: rm.ArgOneOf, Sub: idOrName()}}}},
		{Name: "qlen", Run: m.queueLen, Flags: "readonly fast", Categories: "read fast", Info: rm.Info{
			Summary: "Counts a queue's waiting jobs, here or over the mesh.", Complexity: "O(1), at each node that is asked", Since: since, Arity: -2, Keys: firstKey(rm.KeyRead),
			Args: []rm.Arg{keyArg(), word("MESH"), number("TIMEOUT", "milliseconds")}}},
		{Name: "qflush", Run: m.flushQueue, Flags: "write blocking", Categories: "write slow blocking", Info: rm.Info{
			Summary: "Cancels all jobs of a queue, of this node or of the mesh.", Complexity: "O(N) with N jobs", Since: since, Arity: -2,
			Keys: firstKey(rm.KeyModify), Args: []rm.Arg{keyArg(), word("ALL"), word("MESH"), number("TIMEOUT", "milliseconds")}}},
		{Name: "qpeek", Run: m.queuePeek, Flags: "readonly", Categories: "read slow", Info: rm.Info{
			Summary: "Shows a queue's oldest jobs, or with a negative count its newest, and takes none.", Complexity: "O(N) with N jobs shown", Since: since, Arity: 3,
			Keys: firstKey(rm.KeyRead), Args: []rm.Arg{keyArg(), {Name: "count", Kind: rm.ArgInteger}}}},
		{Name: "qstat", Run: m.queueStat, Flags: "readonly fast", Categories: "read fast", Info: rm.Info{
			Summary: "Describes a queue, here or over the mesh.", Complexity: "O(1), at each node that is asked", Since: since, Arity: -2, Keys: firstKey(rm.KeyRead),
			Args: []rm.Arg{keyArg(), word("MESH"), number("TIMEOUT", "milliseconds")}}},
		{Name: "wip", Run: m.workInProgress, Flags: "readonly", Categories: "read slow", Info: rm.Info{
			Summary: "Lists a queue's jobs that are being worked on, or are delayed, the first that is due first.", Complexity: "O(N) with N jobs listed, at each node that is asked", Since: since, Arity: -2, Keys: firstKey(rm.KeyRead),
			Args: []rm.Arg{keyArg(), number("COUNT", "count"), word("OVERDUE"), word("DELAYED"), {Name: "cursor", Kind: rm.ArgString, Token: "CURSOR", Optional: true}, word("MESH"), number("TIMEOUT", "milliseconds")}}},
		{Name: "qscan", Run: m.queueScan, Flags: "readonly", Categories: "read slow", Info: rm.Info{
			Summary: "Walks through the queues, of this node or of the mesh.", Complexity: "O(1) for each call, O(N) for all N queues; with MESH each call costs the other nodes O(N) with N queues listed", Since: since, Arity: -1, Tips: "nondeterministic_output",
			Args: []rm.Arg{{Name: "cursor", Kind: rm.ArgInteger, Optional: true}, number("COUNT", "count"), word("BUSYLOOP"), number("MINLEN", "count"), number("MAXLEN", "count"), number("IMPORTRATE", "rate"), word("MESH"), number("TIMEOUT", "milliseconds")}}},
		{Name: "jscan", Run: m.jobScan, Flags: "readonly", Categories: "read slow", Info: rm.Info{
			Summary: "Walks through the jobs, of this node or of the mesh.", Complexity: "O(1) for each call, O(N) for all N jobs", Since: since, Arity: -1, Tips: "nondeterministic_output",
			Args: []rm.Arg{{Name: "cursor", Kind: rm.ArgInteger, Optional: true}, number("COUNT", "count"), word("BUSYLOOP"),
				{Name: "queue", Kind: rm.ArgString, Token: "QUEUE", Optional: true}, {Name: "state", Kind: rm.ArgString, Token: "STATE", Optional: true, Multiple: true, Repeat: true},
				{Name: "reply", Kind: rm.ArgOneOf, Token: "REPLY", Optional: true, Sub: []rm.Arg{{Name: "all", Kind: rm.ArgToken, Token: "all"}, {Name: "id", Kind: rm.ArgToken, Token: "id"}}}, word("MESH"), number("TIMEOUT", "milliseconds")}}},
		{Name: "pause", Run: m.pause, Flags: "write fast", Categories: "write fast", Info: rm.Info{
			Summary: "Pauses a queue's input or output, or tells whether they are paused.", Complexity: "O(1)", Since: since, Arity: -3, Keys: firstKey(rm.KeyModify),
			Args: []rm.Arg{keyArg(), {Name: "option", Kind: rm.ArgOneOf, Multiple: true, Sub: []rm.Arg{
				{Name: "in", Kind: rm.ArgToken, Token: "in"}, {Name: "out", Kind: rm.ArgToken, Token: "out"}, {Name: "all", Kind: rm.ArgToken, Token: "all"},
				{Name: "none", Kind: rm.ArgToken, Token: "none"}, {Name: "state", Kind: rm.ArgToken, Token: "state"}, {Name: "bcast", Kind: rm.ArgToken, Token: "bcast"}}},
				number("FOR", "seconds")}}},
		{Name: "qconfig", Info: rm.Info{Summary: "A container for commands about the settings of queues.", Complexity: "Depends on subcommand.", Since: since, Arity: -2}, Sub: []rm.Command{
			{Name: "set", Run: m.configSet, Flags: "write deny-oom", Categories: "write slow", Info: rm.Info{
				Summary: "Sets what jobs of a queue, or of all queues of a pattern, have by default.", Complexity: "O(N) with N settings", Since: since, Arity: -5, Args: settingArgs(true)}},
			{Name: "get", Run: m.configGet, Flags: "readonly", Categories: "read slow", Info: rm.Info{
				Summary: "Shows the settings that count for a queue.", Complexity: "O(N) with N patterns", Since: since, Arity: -3, Args: settingArgs(false)}},
			{Name: "unset", Run: m.configUnset, Flags: "write", Categories: "write slow", Info: rm.Info{
				Summary: "Takes single settings of a queue or pattern away.", Complexity: "O(N) with N settings", Since: since, Arity: -4, Args: settingArgs(false)}},
			{Name: "del", Run: m.configDelete, Flags: "write", Categories: "write slow", Info: rm.Info{
				Summary: "Takes all settings of a queue or pattern away.", Complexity: "O(N) with N settings", Since: since, Arity: 3, Args: settingArgs(false)[:1:1]}},
			{Name: "list", Run: m.configList, Flags: "readonly", Categories: "read slow", Info: rm.Info{
				Summary: "Shows all settings.", Complexity: "O(N) with N settings", Since: since, Arity: 2}},
			{Name: "restore", Run: m.configRestore, Flags: "write", Categories: "admin", Info: rm.Info{
				Summary: "Internal: all settings, logged.", Complexity: "O(N) with N settings", Since: since, Arity: 3, Args: []rm.Arg{{Name: "settings", Kind: rm.ArgString}}}},
			settingsHelp(),
		}},
		{Name: "cron", Info: rm.Info{Summary: "A container for commands about recurring jobs.", Complexity: "Depends on subcommand.", Since: since, Arity: -2}, Sub: []rm.Command{
			{Name: "set", Run: m.cronSet, Flags: "write deny-oom", Categories: "write slow", Info: rm.Info{
				Summary: "Sets a recurring job, or replaces the whole of it.", Complexity: "O(log N) with N recurring jobs", Since: since, Arity: -8,
				Keys: []rm.KeySpec{{Flags: rm.KeyInsert, Keyword: "JOB", Position: 3, Step: 1}},
				Args: append([]rm.Arg{{Name: "name", Kind: rm.ArgString}, {Name: "when", Kind: rm.ArgOneOf, Sub: []rm.Arg{
					{Name: "interval", Kind: rm.ArgBlock, Sub: []rm.Arg{{Name: "seconds", Kind: rm.ArgInteger, Token: "EVERY"}, number("OFFSET", "seconds")}},
					{Name: "line-in-zone", Kind: rm.ArgBlock, Sub: []rm.Arg{{Name: "line", Kind: rm.ArgString, Token: "LINE"}, {Name: "zone", Kind: rm.ArgString, Token: "ZONE", Optional: true}}}}},
					{Name: "missed", Kind: rm.ArgOneOf, Token: "MISSED", Optional: true, Sub: []rm.Arg{
						{Name: "skip", Kind: rm.ArgToken, Token: "skip"}, {Name: "last", Kind: rm.ArgToken, Token: "last"}, {Name: "all", Kind: rm.ArgToken, Token: "all"}}},
					number("FROM", "unix-seconds"), number("UNTIL", "unix-seconds"),
					{Name: "queue", Kind: rm.ArgKey, Token: "JOB"}, {Name: "body", Kind: rm.ArgString}}, jobArgs()...)}},
			{Name: "del", Run: m.cronDelete, Flags: "write", Categories: "write slow", Info: rm.Info{
				Summary: "Deletes recurring jobs.", Complexity: "O(N) with N names", Since: since, Arity: -3, Args: cronNames()}},
			{Name: "pause", Run: m.cronPause, Flags: "write", Categories: "write slow", Info: rm.Info{
				Summary: "Pauses recurring jobs.", Complexity: "O(N) with N names", Since: since, Arity: -3, Args: cronNames()}},
			{Name: "resume", Run: m.cronResume, Flags: "write", Categories: "write slow", Info: rm.Info{
				Summary: "Ends the pause of recurring jobs.", Complexity: "O(N) with N names", Since: since, Arity: -3, Args: cronNames()}},
			{Name: "get", Run: m.cronGet, Flags: "readonly", Categories: "read slow", Info: rm.Info{
				Summary: "Describes a recurring job.", Complexity: "O(1)", Since: since, Arity: 3, Args: []rm.Arg{{Name: "name", Kind: rm.ArgString}}}},
			{Name: "list", Run: m.cronList, Flags: "readonly", Categories: "read slow", Info: rm.Info{
				Summary: "Lists recurring jobs by name.", Complexity: "O(N) with N recurring jobs", Since: since, Arity: -2, Args: []rm.Arg{{Name: "pattern", Kind: rm.ArgString, Token: "MATCH", Optional: true}}}},
			{Name: "next", Run: m.cronNext, Flags: "readonly", Categories: "read slow", Info: rm.Info{
				Summary: "Tells when a recurring job's next jobs are due.", Complexity: "O(N) with N slots", Since: since, Arity: -3, Args: []rm.Arg{{Name: "name", Kind: rm.ArgString}, number("COUNT", "count")}}},
			{Name: "run", Run: m.cronRun, Flags: "write deny-oom", Categories: "write slow", Info: rm.Info{
				Summary: "Adds a recurring job's job now, which is that of no slot.", Complexity: "O(1)", Since: since, Arity: 3, Args: []rm.Arg{{Name: "name", Kind: rm.ArgString}}}},
			cronHelp(),
		}},
		{Name: "loadjob", Run: m.loadJob, Flags: "write", Categories: "admin", Info: rm.Info{
			Summary: "Internal: a logged job.", Complexity: "O(1)", Since: since, Arity: -2, Args: []rm.Arg{{Name: "queue", Kind: rm.ArgString}, {Name: "record", Kind: rm.ArgString}}}},
		{Name: "setjob", Run: m.setJob, Flags: "write", Categories: "admin", Info: rm.Info{
			Summary: "Internal: a logged job's changed state.", Complexity: "O(1)", Since: since, Arity: -2, Args: []rm.Arg{{Name: "record", Kind: rm.ArgString}, {Name: "holders", Kind: rm.ArgString, Optional: true}, {Name: "queue", Kind: rm.ArgString, Optional: true}}}},
		{Name: "makequeue", Run: m.makeQueue, Flags: "write", Categories: "admin", Info: rm.Info{
			Summary: "Internal: a logged queue of which no job is logged yet.", Complexity: "O(1)", Since: since, Arity: 2, Args: []rm.Arg{{Name: "queue", Kind: rm.ArgString}}}},
		{Name: "delqueue", Run: m.deleteQueue, Flags: "write", Categories: "admin", Info: rm.Info{
			Summary: "Internal: the logged end of queues.", Complexity: "O(N) with N queues", Since: since, Arity: -2, Args: []rm.Arg{{Name: "queue", Kind: rm.ArgString, Multiple: true}}}},
		{Name: "jobmesh", Info: rm.Info{Summary: "A container for commands about the node.", Complexity: "Depends on subcommand.", Since: since, Arity: -2}, Sub: []rm.Command{
			{Name: "hello", Run: m.hello, Flags: "readonly fast deny-script allow-stale", Categories: "fast", Info: rm.Info{
				Summary: "Describes this node and those it knows.", Complexity: "O(N) with N nodes", Since: since, Arity: 2}},
			{Name: "info", Run: m.infoCommand, Flags: "readonly allow-loading allow-stale", Categories: "slow", Info: rm.Info{
				Summary: "Counts jobs and queues, or shows a section of INFO, with Disque's fields.", Complexity: "O(1)", Since: since, Arity: -2, Args: []rm.Arg{{Name: "section", Kind: rm.ArgString, Optional: true}}}},
			{Name: "config", Run: m.configCommand, Flags: "readonly admin deny-script allow-loading allow-stale", Categories: "admin slow dangerous", Info: rm.Info{
				Summary: "Shows a parameter by Disque's name for it.", Complexity: "O(1)", Since: since, Arity: 4, Args: []rm.Arg{word("GET"), {Name: "parameter", Kind: rm.ArgString}}}},
			{Name: "cluster", Run: m.cluster, Flags: "admin deny-script", Categories: "admin dangerous", Info: rm.Info{
				Summary: "Shows and changes what the node is to the mesh.", Complexity: "O(N) with N nodes", Since: since, Arity: -3, Args: []rm.Arg{{Name: "subcommand", Kind: rm.ArgString}, {Name: "argument", Kind: rm.ArgString, Optional: true, Multiple: true}}}},
			{Name: "flush", Run: m.flush, Flags: "write admin", Categories: "write admin dangerous", Info: rm.Info{
				Summary: "Deletes all queues and jobs of this node.", Complexity: "O(N) with N queues", Since: since, Arity: 2}},
			{Name: "lua", Run: m.luaCommand, Flags: "write deny-oom deny-script", Categories: "write slow", Info: rm.Info{
				Summary: "Loads functions that move queues between other libraries and jobmesh, or lists what can be loaded.", Complexity: "O(N) with N bytes of code", Since: since, Arity: -3, Args: []rm.Arg{
					{Name: "subcommand", Kind: rm.ArgOneOf, Sub: []rm.Arg{
						{Name: "load", Kind: rm.ArgBlock, Sub: []rm.Arg{{Name: "load", Kind: rm.ArgToken, Token: "LOAD"}, word("REPLACE"), {Name: "library", Kind: rm.ArgString, Optional: true}}},
						{Name: "list", Kind: rm.ArgToken, Token: "LIST"}}}}}},
			{Name: "publish", Run: m.publish, Flags: "pubsub may-replicate fast", Categories: "pubsub fast", Info: rm.Info{
				Summary: "Publishes a message to the subscribers at all nodes.", Complexity: "O(N+M) with N nodes and M subscribers and patterns, at each node", Since: since, Arity: 4, Args: []rm.Arg{
					{Name: "channel", Kind: rm.ArgString}, {Name: "message", Kind: rm.ArgString}}}},
			{Name: "shutdown", Run: m.shutdown, Flags: "admin deny-script", Categories: "admin dangerous", Info: rm.Info{
				Summary: "Saves queues with their positions, and exits: for a controlled restart.", Complexity: "O(N) with N jobs", Since: since, Arity: 2}},
			{Name: "epoch", Run: m.epochEffect, Flags: "write", Categories: "admin", Info: rm.Info{
				Summary: "Internal: the process that writes the log from here on.", Complexity: "O(1)", Since: since, Arity: -3, Args: []rm.Arg{{Name: "process", Kind: rm.ArgString}, {Name: "doubt", Kind: rm.ArgString, Optional: true, Multiple: true}}}},
			{Name: "flushed", Run: m.flushedEffect, Flags: "write", Categories: "admin", Info: rm.Info{
				Summary: "Internal: all queues are flushed.", Complexity: "O(1)", Since: since, Arity: 2}},
			{Name: "event", Run: m.eventEffect, Flags: "write", Categories: "admin", Info: rm.Info{
				Summary: "Internal: an entry of the stream of events.", Complexity: "O(N) with N fields", Since: since, Arity: -7, Args: []rm.Arg{{Name: "key", Kind: rm.ArgString}, {Name: "id", Kind: rm.ArgString}, {Name: "length", Kind: rm.ArgInteger}, {Name: "field", Kind: rm.ArgString, Multiple: true}}}},
			{Name: "final", Run: m.finalEffect, Flags: "write", Categories: "admin", Info: rm.Info{
				Summary: "Internal: the log ended with JOBMESH SHUTDOWN.", Complexity: "O(1)", Since: since, Arity: 2}},
			containerHelp(),
		}},
	}
}
