package commands

import (
	"errors"
	"fmt"
	"strings"

	"jobmesh/lua"
	"jobmesh/module/engine"
	"jobmesh/rm"
)

const errLua engine.Refusal = "ERR Wrong LUA subcommand or number of arguments, try LOAD or LIST"

// States of an embedded library, as LUA LIST shows them.
const (
	libraryAbsent  = "no"
	libraryLoaded  = "yes"
	libraryAnother = "another" // the server has a library of this name with other code
)

// luaCommand loads and lists the libraries of functions that the module contains. A loaded
// library is the server's, as one that FUNCTION LOAD loads: it is saved and replicated, and
// stays when the module is no longer loaded.
func (m *module) luaCommand(c *rm.Ctx) {
	switch sub := c.Arg(2); {
	case is(sub, "LOAD"):
		m.luaLoad(c)
	case is(sub, "LIST") && c.NArgs() == 3:
		m.luaList(c)
	default:
		fail(c, errLua)
	}
}

// parseLuaLoad reads LOAD [REPLACE] [library].
func parseLuaLoad(c args) (library lua.Library, replace bool, err error) {
	i, all := 3, lua.Libraries()
	if i < c.NArgs() && is(c.Arg(i), "REPLACE") {
		replace = true
		i++
	}
	switch c.NArgs() - i {
	case 0:
		return all[0], replace, nil
	case 1:
	default:
		return library, replace, errSyntax
	}
	for _, l := range all {
		if l.Name == string(c.Arg(i)) {
			return l, replace, nil
		}
	}
	return library, replace, errors.New("ERR no such library, see JOBMESH LUA LIST")
}

// luaLoad answers the library's name, as FUNCTION LOAD does. If the server has this
// library already, luaLoad changes nothing.
func (m *module) luaLoad(c *rm.Ctx) {
	library, replace, err := parseLuaLoad(c)
	if err != nil {
		fail(c, err)
		return
	}
	if !mayRun(c, "FUNCTION", "LOAD") {
		return
	}
	state, err := m.libraryState(library)
	switch {
	case err != nil:
		c.Error("ERR " + err.Error())
		return
	case state == libraryAnother && !replace:
		c.Error("ERR the server has another library '" + library.Name + "', of another version maybe: JOBMESH LUA LOAD REPLACE puts this one in its place")
		return
	case state == libraryLoaded:
		c.Text(library.Name)
		return
	}
	if _, err := m.server.CallStrings("FUNCTION", "LOAD", "REPLACE", library.Code); err != nil {
		c.Error(withCode(err))
		return
	}
	// The code itself goes to the log and the replicas, since they may have another version
	// of the module.
	args := c.Replicate(m.effect.function, 3)
	args.Text("LOAD")
	args.Text("REPLACE")
	args.Text(library.Code)
	c.Text(library.Name)
}

func (m *module) luaList(c *rm.Ctx) {
	if !mayRun(c, "FUNCTION", "LIST") {
		return
	}
	libraries := lua.Libraries()
	states := make([]string, len(libraries))
	for i, l := range libraries {
		var err error
		if states[i], err = m.libraryState(l); err != nil {
			c.Error("ERR " + err.Error())
			return
		}
	}
	c.Array(len(libraries))
	for i, l := range libraries {
		c.Map(2)
		c.Text("library")
		c.Text(l.Name)
		c.Text("loaded")
		c.Text(states[i])
	}
}

// libraryState finds out whether the server has a library. It searches the reply of
// FUNCTION LIST for the library's code, and need not parse the reply.
func (m *module) libraryState(l lua.Library) (string, error) {
	reply, err := m.server.Call("FUNCTION", "LIST", "LIBRARYNAME", l.Name, "WITHCODE")
	switch {
	case err != nil:
		return "", fmt.Errorf("the server's functions can't be listed: %w", err)
	case strings.HasPrefix(reply, "-"):
		return "", errors.New("the server's functions can't be listed: " + strings.TrimSpace(reply[1:]))
	case strings.HasPrefix(reply, "*0\r\n"):
		return libraryAbsent, nil
	case strings.Contains(reply, fmt.Sprintf("$%d\r\n%s\r\n", len(l.Code), l.Code)):
		return libraryLoaded, nil
	}
	return libraryAnother, nil
}

// withCode returns the text of an error of the server. It adds the code ERR if the text has
// no code.
func withCode(err error) string {
	if code, _, more := strings.Cut(err.Error(), " "); more && code == strings.ToUpper(code) {
		return err.Error()
	}
	return "ERR " + err.Error()
}
