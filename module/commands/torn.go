package commands

import (
	"os"
	"path/filepath"
	"strings"

	"jobmesh/rm"
)

// A server that is killed while it logs a transaction, what a script did for
// example, leaves its beginning in the log. With aof-load-truncated yes most
// servers (Redis up to 8.6 at least, Valkey before 9.1) cut off no more than the
// last, halved command, at the next start. Whatever is logged from then on lies
// behind an open MULTI, and the start after that carries out both: jobs that were
// never promised appear, of a queue that was moved each is there twice. So a log
// that was cut is written anew at once.

// logSize adds up the files of the AOF; 0 where there are none, -1 where the server
// doesn't tell which they are. At a start, while the server reads them: nothing waits
// for this look at them.
func (m *module) logSize() (bytes int64) {
	var path [3]string
	for i, name := range []string{"dir", "appenddirname", "appendfilename"} {
		value, err := m.server.ConfigValue(name)
		if err != nil {
			return -1
		}
		path[i] = value
	}
	files, _ := os.ReadDir(filepath.Join(path[0], path[1]))
	for _, f := range files {
		if info, err := f.Info(); err == nil && strings.HasPrefix(f.Name(), path[2]) {
			bytes += info.Size()
		}
	}
	return bytes
}

// mendLog follows the loading of an AOF.
func (m *module) mendLog(phase rm.LoadPhase) {
	switch phase {
	case rm.LoadAOF:
		m.logged = m.logSize()
	case rm.LoadEnded:
		why := ""
		switch before := m.logged; {
		case before < 0:
			why = "CONFIG GET is refused (is CONFIG renamed?), so it can't be seen whether the AOF ended in the middle of a write"
		case before > 0 && m.logSize() < before:
			why = "the AOF ended in the middle of a write and was cut"
		}
		if why != "" {
			m.server.Log(rm.Notice, "%s: it is written anew, since the rest of a transaction may be left in it", why)
			// Not before the server has done loading.
			m.server.After(0, func(*rm.Ctx) {
				if _, err := m.server.CallStrings("BGREWRITEAOF"); err != nil {
					m.server.Log(rm.Warning, "the AOF can't be written anew, BGREWRITEAOF before the next start: %v", err)
				}
			})
		}
		m.logged = 0
	}
}
