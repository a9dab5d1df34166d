package commands

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"jobmesh/rm"
)

// A server that is killed while it logs a transaction, what a script did for
// example, leaves its beginning in the log. With aof-load-truncated yes most
// servers (Redis up to 8.6 at least, Valkey before 9.1) cut off no more than the
// last, halved command, at the next start. The entries that are logged from then on lie
// behind an open MULTI, and the start after that carries out both: jobs that were
// never promised appear, and each job of a queue that was moved is there twice. So the rest of
// the transaction, of which nothing was carried out, is cut off too, before the server
// goes on with the file. To write the log anew instead would leave the open MULTI in a
// file that isn't the last until that is done, at which a start in between ends.

// logSize adds up the files of the AOF; 0 where there are none, -1 where the server
// doesn't tell which they are. At a start, while the server reads them: nothing waits
// for this look at them.
func (m *module) logSize() (bytes int64) {
	dir, name, err := m.logPath()
	if err != nil {
		return -1
	}
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		if info, err := f.Info(); err == nil && strings.HasPrefix(f.Name(), name) {
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
		switch before := m.logged; {
		case before < 0:
			m.rewriteLog("CONFIG GET is refused (is CONFIG renamed?), so it can't be seen whether the AOF ended in the middle of a write")
		case before > 0 && m.logSize() < before:
			cut, err := m.cutTransaction()
			switch {
			case err != nil:
				m.rewriteLog(fmt.Sprintf("the AOF ended in the middle of a write and was cut, and its end can't be looked at (%v)", err))
			case cut > 0:
				m.server.Log(rm.Notice, "the AOF ended in the middle of a transaction: the %d bytes that the server left of it are cut off, too", cut)
			}
		}
		m.logged = 0
	}
}

// rewriteLog has a log written anew in which the rest of a transaction may be left.
func (m *module) rewriteLog(why string) {
	m.server.Log(rm.Notice, "%s: it is written anew, since the rest of a transaction may be left in it", why)
	// Not before the server has done loading.
	m.server.After(0, func(*rm.Ctx) {
		if _, err := m.server.CallStrings("BGREWRITEAOF"); err != nil {
			m.server.Log(rm.Warning, "the AOF can't be written anew, BGREWRITEAOF before the next start: %v", err)
		}
	})
}

// cutTransaction cuts an open transaction off the AOF's last file, and says how many
// bytes that was. The server hasn't opened the file to go on with it yet.
func (m *module) cutTransaction() (bytes int64, err error) {
	_, files, err := m.logManifest()
	if err != nil {
		return 0, err
	}
	if len(files) == 0 {
		return 0, errors.New("its manifest names no file")
	}
	f, err := os.OpenFile(files[len(files)-1], os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	begin, size, err := openTransaction(f)
	if err != nil || begin < 0 {
		return 0, err
	}
	return size - begin, errors.Join(f.Truncate(begin), f.Sync())
}

// openTransaction finds where the transaction begins that a file of an AOF ends in, -1
// where it ends in none, and the file's length. An error is a file that isn't whole
// commands.
func openTransaction(file io.Reader) (begin, size int64, err error) {
	r, begin := bufio.NewReaderSize(file, 1<<20), int64(-1)
	line := func(kind byte) (n int64, err error) {
		b, err := r.ReadSlice('\n')
		size += int64(len(b))
		if err != nil {
			return 0, fmt.Errorf("at byte %d: %w", size, err)
		}
		if kind == '#' {
			return 0, nil
		}
		if len(b) < 4 || b[0] != kind {
			return 0, fmt.Errorf("at byte %d: %.20q instead of %c and a number", size, b, kind)
		}
		return strconv.ParseInt(string(b[1:len(b)-2]), 10, 64)
	}
	for {
		start := size
		switch first, err := r.Peek(1); {
		case err == io.EOF:
			return begin, size, nil
		case err != nil:
			return 0, 0, err
		case first[0] == '#': // a time
			if _, err := line('#'); err != nil {
				return 0, 0, err
			}
			continue
		}
		args, err := line('*')
		if err != nil {
			return 0, 0, err
		}
		for i := range args {
			n, err := line('$')
			if err != nil {
				return 0, 0, err
			}
			if i == 0 && args == 1 && n <= 5 {
				word, err := r.Peek(int(n))
				if err != nil {
					return 0, 0, err
				}
				switch strings.ToUpper(string(word)) {
				case "MULTI":
					begin = start
				case "EXEC":
					begin = -1
				}
			}
			if n < 0 || n > math.MaxInt-2 {
				return 0, 0, fmt.Errorf("at byte %d: a length of %d", size, n)
			}
			skipped, err := r.Discard(int(n) + 2)
			size += int64(skipped)
			if err != nil {
				return 0, 0, fmt.Errorf("at byte %d: %w", size, err)
			}
		}
	}
}
