package commands

import "jobmesh/rm"

// help answers a container's HELP, as the server's containers do. Its lines are a form and
// what that does, in turns.
func help(lines ...string) func(*rm.Ctx) {
	return func(c *rm.Ctx) {
		c.Array(len(lines))
		for _, line := range lines {
			c.Simple(line)
		}
	}
}

func helpCommand(lines ...string) rm.Command {
	return rm.Command{Name: "help", Run: help(lines...), Flags: "readonly fast allow-loading allow-stale", Categories: "fast", Info: rm.Info{
		Summary: "Shows what subcommands there are.", Complexity: "O(1)", Since: since, Arity: 2}}
}

func containerHelp() rm.Command {
	return helpCommand(
		"JOBMESH <subcommand> [<arg> ...]. Subcommands are:",
		"HELLO", "    This node and those that it knows.",
		"INFO [<section>]", "    Counts of jobs and queues; INFO jobmesh has everything.",
		"CLUSTER MYID|NODES|INFO|SAVECONFIG", "    What the node is to the mesh.",
		"CLUSTER MEET <ip> <port> [<bus-port>]", "    Make a mesh with another node.",
		"CLUSTER FORGET <id>|RESET [SOFT|HARD]|LEAVING [yes|no]", "    Leave it, or have another leave.",
		"CONFIG GET aof-enqueue-jobs-once", "    A parameter by Disque's name for it; else CONFIG GET jobmesh.*",
		"LUA LOAD [REPLACE] [<library>]|LIST", "    Functions that move queues of Resque, Sidekiq and rq.",
		"PUBLISH <channel> <message>", "    PUBLISH at all nodes.",
		"FLUSH", "    Delete all queues and jobs of this node.",
		"SHUTDOWN", "    Save queues with their positions, and exit.",
		"HELP", "    This text. Each command: COMMAND DOCS ADDJOB GETJOB …",
	)
}

func cronHelp() rm.Command {
	return helpCommand(
		"CRON <subcommand> [<arg> ...]. Subcommands are:",
		"SET <name> EVERY <seconds> [OFFSET <seconds>]|LINE <line> [ZONE <zone>] [MISSED skip|last|all] [FROM <unix>] [UNTIL <unix>] JOB <queue> <body> [<option> ...]", "    Make a job again and again. Options are ADDJOB's.",
		"DEL <name> [<name> ...]", "    End that.",
		"PAUSE <name> [<name> ...]", "    Make none until RESUME.",
		"RESUME <name> [<name> ...]", "    Go on. What was missed meanwhile isn't made.",
		"GET <name>", "    What was set, and how far it is.",
		"LIST [MATCH <pattern>]", "    All recurring jobs, by name.",
		"NEXT <name> [COUNT <n>]", "    When the next jobs are due.",
		"RUN <name>", "    Add one job now.",
		"HELP", "    This text.",
	)
}

func settingsHelp() rm.Command {
	return helpCommand(
		"QCONFIG <subcommand> [<arg> ...]. Subcommands are:",
		"SET <queue or pattern> <option> <value> [<option> <value> ...]", "    What jobs have by default. Options of ADDJOB, and EXCLUDE yes|no.",
		"GET <queue or pattern> [<option> ...]", "    What counts for a queue.",
		"UNSET <queue or pattern> <option> [<option> ...]", "    Take single options away.",
		"DEL <queue or pattern>", "    Take all of them away.",
		"LIST", "    All settings.",
		"HELP", "    This text.",
	)
}
