package commands

import (
	"fmt"
	"strings"

	"jobmesh/rm"
)

// disqueNames returns the commands that Disque and Redis both have with different meanings,
// and those whose Disque form Redis refuses. With jobmesh.disque-compat yes they have
// Disque's meaning. A command that isn't in the list, as HELLO 3, stays the server's.
// Subcommands are listed one by one for the same reason.
func disqueNames() []rm.Rewrite {
	rules := []rm.Rewrite{
		{From: "HELLO", To: "JOBMESH HELLO"},
		{From: "DEBUG FLUSHALL", To: "JOBMESH FLUSH"},
		{From: "SHUTDOWN REWRITE-AOF", To: "JOBMESH SHUTDOWN"},
		{From: "CONFIG GET aof-enqueue-jobs-once", To: "JOBMESH CONFIG GET aof-enqueue-jobs-once"},
		{From: "CONFIG SET aof-enqueue-jobs-once", More: 1, To: "CONFIG SET jobmesh.aof-enqueue-jobs-once"},
		{From: "INFO", To: "JOBMESH INFO default"},
	}
	for _, section := range []string{"default", "all", "everything", "server", "persistence", "jobs", "queues"} {
		rules = append(rules, rm.Rewrite{From: "INFO " + section, To: "JOBMESH INFO " + section})
	}
	for _, sub := range []string{"MEET", "NODES", "INFO", "FORGET", "RESET", "LEAVING", "MYID", "SAVECONFIG"} {
		rules = append(rules, rm.Rewrite{From: "CLUSTER " + sub, More: -1, To: "JOBMESH CLUSTER " + sub})
	}
	return rules
}

func (m *module) setCompat(on bool) error {
	var rules []rm.Rewrite
	if on {
		rules = disqueNames()
	}
	if err := m.server.SetRewrites(rules); err != nil {
		return err
	}
	m.compat = on
	if m.node != nil {
		m.node.SetExpiresInHands(on)
	}
	return nil
}

// mayRun refuses a command that stands in for one of the server's to users who may not run
// that one. So an ACL that names the server's commands still holds. Before Redis 7.4 it
// also replaces the check of categories, which modules' commands don't have there.
func mayRun(c *rm.Ctx, command ...string) bool {
	may, known := c.MayRun(command...)
	name := strings.ToLower(strings.Join(command, "|"))
	switch {
	case !known:
		c.Error("NOPERM the server has no '" + name + "' command, and this does the same: rename-command has hidden it, from all users")
	case !may:
		c.Error("NOPERM this user has no permissions to run the '" + name + "' command")
	}
	return may
}

// infoCommand is INFO with Disque's own fields. It answers these alone if the client asks
// for nothing or for one of Disque's sections. Otherwise it adds them to the server's text.
func (m *module) infoCommand(c *rm.Ctx) {
	if c.NArgs() > 3 {
		fail(c, errSyntax)
		return
	}
	section := ""
	if c.NArgs() == 3 {
		section = strings.ToLower(string(c.Arg(2)))
		if !mayRun(c, "INFO") {
			return
		}
	}
	jobs := fmt.Sprintf("# Jobs\r\nregistered_jobs:%d\r\n", m.node.Jobs())
	queues := fmt.Sprintf("# Queues\r\nregistered_queues:%d\r\n", m.node.Queues())
	switch section {
	case "":
		c.Prose(jobs + "\r\n" + queues)
		return
	case "jobs":
		c.Prose(jobs)
		return
	case "queues":
		c.Prose(queues)
		return
	}
	reply, err := m.server.CallStrings("INFO", section)
	if err != nil {
		c.Error("ERR " + err.Error())
		return
	}
	c.Prose(disqueFields(strings.Join(reply, ""), jobs+"\r\n"+queues))
}

// disqueVersion is the release of Disque whose commands and replies are served.
const disqueVersion = "1.0-rc1"

// disqueFields adds Disque's fields to a text of INFO, where Disque has them. Disque's own
// sections go there too, since some clients lose the last section.
func disqueFields(text, sections string) string {
	if before, after, both := strings.Cut(text, "\r\n\r\n# Persistence\r\n"); both {
		text = before + "\r\n\r\n" + sections + "\r\n# Persistence\r\n" + after
	}
	return strings.NewReplacer(
		"# Server\r\n", "# Server\r\ndisque_version:"+disqueVersion+"\r\n",
		"\r\naof_enabled:0\r\n", "\r\naof_enabled:0\r\naof_state:off\r\n",
		"\r\naof_enabled:1\r\n", "\r\naof_enabled:1\r\naof_state:on\r\n",
	).Replace(text)
}

// configCommand is CONFIG GET for a parameter of Disque, by Disque's name.
func (m *module) configCommand(c *rm.Ctx) {
	name := strings.ToLower(string(c.Arg(3)))
	if !is(c.Arg(2), "GET") {
		fail(c, errSyntax)
		return
	}
	if !mayRun(c, "CONFIG", "GET") {
		return
	}
	found, err := m.server.CallStrings("CONFIG", "GET", "jobmesh."+name)
	if err != nil {
		c.Error("ERR " + err.Error())
		return
	}
	c.Map(len(found) / 2)
	for i, s := range found {
		if i%2 == 0 {
			s = strings.TrimPrefix(s, "jobmesh.")
		}
		c.Text(s)
	}
}
