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

// The server may be killed while it logs a transaction, for example the effects of a
// script. Then the log ends with the beginning of the transaction. With aof-load-truncated
// yes most servers (Redis up to 8.6 at least, Valkey before 9.1) cut off only the last,
// halved command at the next start. Entries that are logged from then on lie behind an open
// MULTI, and the start after that carries out both: jobs that were never promised appear,
// and each job of a queue that was moved is there twice. The server carried out nothing of
// the open transaction. So the rest of it is cut off too, before the server goes on with
// the file. To rewrite the log instead would be no remedy: until the rewrite is done, the
// open MULTI is in a file that isn't the last, and a start in that time fails.

// logSize adds up the sizes of the AOF's files. It returns 0 if there are none, and -1 if
// the server doesn't tell which they are. It is called at a start, while the server reads
// these files, so nobody waits for it.
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

// rewriteLog rewrites a log that may contain the rest of a transaction.
func (m *module) rewriteLog(why string) {
	m.server.Log(rm.Notice, "%s: it is written anew, since the rest of a transaction may be left in it", why)
	// Only after the server has finished loading.
	m.server.After(0, func(*rm.Ctx) {
		if _, err := m.server.CallStrings("BGREWRITEAOF"); err != nil {
			m.server.Log(rm.Warning, "the AOF can't be written anew, BGREWRITEAOF before the next start: %v", err)
		}
	})
}

// cutTransaction cuts an open transaction off the AOF's last file, and returns how many
// bytes it cut. The server hasn't opened the file for writing yet.
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

// openTransaction finds the transaction that is open at the end of an AOF file. begin is
// where it starts, -1 if none is open; size is the file's length. The error says that the
// file doesn't consist of whole commands.
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
		case first[0] == '#': // a timestamp
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
