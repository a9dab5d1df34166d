package rm

import (
	"strings"

	"jobmesh/cgo/api"
)

// Rewrite turns a command into another before the server looks it up.
type Rewrite struct {
	From string // its first words, in any case: "CLUSTER NODES"
	More int    // how many arguments may follow them; -1: any number
	To   string // the words in their place; what follows stays
}

// SetRewrites replaces the rules in force. The first rule that matches a command counts.
// Without rules every command is the server's, at no cost.
//
// The rules apply to commands of clients and scripts, not to the module's own calls.
// Whatever the server does with a command, it does with the rewritten one: arity, ACL,
// MULTI, MONITOR, SLOWLOG. A command that replaces another can require the right to that
// too: [Ctx.MayRun].
func (s *Server) SetRewrites(rules []Rewrite) error {
	if !s.loaded {
		s.rewrites = rules
		return nil
	}
	list := make([]api.Rule, len(rules))
	for i, r := range rules {
		list[i] = api.Rule{From: strings.Fields(r.From), To: strings.Fields(r.To), More: r.More}
	}
	return api.SetFilter(s.ctx, list)
}

// MayRun says whether the ACL lets the client's user run a command ("CLUSTER", "NODES"). If
// there is no user, as with the AOF, the answer is yes. known says whether the server has
// the command by that name, which rename-command can take away.
func (c *Ctx) MayRun(command ...string) (may, known bool) {
	list := make([][]byte, len(command))
	for i, word := range command {
		list[i] = []byte(word)
	}
	return api.MayRun(c.f.Context(), list...)
}
