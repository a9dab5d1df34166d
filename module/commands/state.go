package commands

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"jobmesh/cgo/record"
	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// The state file records what neither the AOF nor the RDB can say of the process that wrote
// them: that the data which it left is all that there was. Without that, an at-most-once
// job which the data shows as waiting may have been delivered, and isn't queued again.
//
// The file says so in one of two ways:
//
// After a clean shutdown, the process wrote everything before it ended. The file identifies
// the data by the names, sizes and ends of the AOF's files, or by the epoch in the RDB. It
// also contains the deliveries of at-least-once jobs, which are in no log, and which votes the
// process took back when everything was saved.
//
// While a process runs with appendfsync always, each change is on disk before its answer
// leaves. The file then identifies the AOF's files by their inodes, so that a backup put in
// their place isn't taken for them. When an AOF rewrite begins, and when it ends, the state
// file is written again with the new inodes. Each time the server has changed the AOF's
// manifest before, so a crash in between finds other files than the state file names. Two
// such sets count too, see [module.isUnfit]. After its checksum the file notes how far the
// log goes, once a second if the log has grown, so that a log that was cut by hand isn't
// taken for whole. A cut is not noticed if it takes away no more than what was logged after
// the last note.
//
// A file counts for one start. It is removed before anything is delivered, so that it can't
// vouch for older data than that of the process that wrote it last. A file that is damaged,
// or doesn't fit the data, is ignored: then the rules of a crash apply.

// lastRun is the content of the state file: facts about the process that wrote it.
type lastRun struct {
	kind    byte
	process uint64  // the process in the epochs that it saved
	changes uint64  // the changes in those epochs; after a clean shutdown
	inode   uint64  // of the state file itself, while a process runs: a copy of the file vouches for nothing
	inLog   uint64  // the last process that the AOF names
	files   aofSum  // sum of the AOF's files: by content after a clean shutdown, else by inode; zero: there was no AOF
	held    []byte  // pairs of strings, each after its length: a job's state record and parts, as in SETJOB
	mark    logMark // only while a process runs
	rewrite rewrite // only while a process runs; in the file it has the places of changes and inLog
}

// rewrite says what the AOF will consist of when the rewrite that runs has succeeded: a base
// with the data of the moment when the rewrite began, and the file that the server began to
// write then. All zero: no rewrite runs.
type rewrite struct {
	changes uint64 // in the epoch that the base has
	next    uint64 // inode of the file
}

// logMark says how far the AOF's last file goes at a moment.
type logMark struct {
	bytes int64
	sum   aofSum // of the number in bytes, and of the file's last tailBytes before that place
}

// restart is what a process knows about the data that were there before it.
type restart struct {
	// logExact: the data that was loaded last is known to be all that there was. It is
	// valid from the end of loading on, before the locks are settled.
	logExact bool
	starting bool         // until firstTurn
	knowing  uint64       // the process that has written known into the nodes' file
	known    engine.Known // what it knew of jobs
	inOrder  bool         // that process has ended in order, and the data that were loaded last are all that it left
	last     *lastRun     // nil once it was used
	files    aofSum       // sum of the AOF's files by content, before they were loaded
	inodes   aofSum       // the same by inode; while the process runs, the inodes that the file synced names
	rewrite  rewrite      // while the process runs: what the file synced says
	unfit    error        // why the AOF's files aren't those of the state file, or don't reach its mark; nil: they are, and do
	rebased  bool         // the AOF's files are those of a rewrite that has ended, if their base is its base
	base     record.Epoch // of the RDB, or of the AOF's base, that was loaded last; zero: it has none
	marked   int64        // while the process runs: bytes of the mark in the file synced
	off, gap bool         // off: the AOF is off. gap: it is or was off, so its files lack what happened then,
	gapFiles aofSum       // as long as they are these (inodes)
	inLog    uint64       // the last process that the AOF names; if its entries name none, the one that its base names
	synced   string       // path of the state file that says ranSynced of this process; empty: there is none
	doubt    doubt        // still to be logged

	endedVotes [][]byte // from whole to endVotes: as in [engine.LogUnlock]
}

// aofSum identifies a state of the AOF's files. All zero: there is no AOF, or its state is
// unknown.
type aofSum = [sha256.Size]byte

// doubt is what made at-most-once jobs uncertain, see [engine.Node.Doubt].
type doubt struct {
	at   int64 // unix ms; 0: nothing
	last uint64
}

// Kinds of state files.
const (
	ranClean  byte = 'c' // the process has ended cleanly
	ranSynced byte = 's' // the process runs, or crashed, with appendfsync always all the time
)

const (
	stateMagic = "jobmesh-state-1\n"
	stateHead  = len(stateMagic) + 1 + 4*8 + sha256.Size
	markAt     = stateHead + sha256.Size // of a running process's file, which has no held jobs
	markBytes  = 8 + sha256.Size
	tailBytes  = 4096 // the last bytes of each of the AOF's files, which distinguish it from others
)

// stateName is the state file's name. The file lies beside the nodes' file.
func (m *module) stateName() string { return strings.TrimSuffix(m.nodesFile, ".conf") + ".state" }

// readState reads what the last process has left, at the start.
func (m *module) readState() {
	b, err := os.ReadFile(m.stateName())
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		m.last, err = parseState(b)
	}
	if err == nil && m.last.kind == ranSynced && m.last.inode != inodeOf(os.Stat(m.stateName())) {
		m.last, err = nil, errors.New("it is a copy, made while the server ran: the server may have gone on since")
	}
	if err != nil {
		m.passOver(err)
	}
}

func (m *module) passOver(why error) {
	m.server.Log(rm.Warning, "%s is passed over, so what was saved is taken for what a crash has left: %v", m.stateName(), why)
}

func parseState(b []byte) (*lastRun, error) {
	var mark []byte
	if len(b) == markAt+markBytes && b[len(stateMagic)] == ranSynced {
		b, mark = b[:markAt], b[markAt:]
	}
	if len(b) < stateHead+sha256.Size {
		return nil, fmt.Errorf("it has %d bytes, at least %d are needed", len(b), stateHead+sha256.Size)
	}
	if string(b[:len(stateMagic)]) != stateMagic {
		return nil, errors.New("it doesn't begin as a state file of this version does")
	}
	body, sum := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if want := sha256.Sum256(body); !bytes.Equal(sum, want[:]) {
		return nil, errors.New("its checksum is wrong")
	}
	b = body[len(stateMagic):]
	r := &lastRun{kind: b[0], process: binary.LittleEndian.Uint64(b[1:]), changes: binary.LittleEndian.Uint64(b[9:]),
		inode: binary.LittleEndian.Uint64(b[17:]), inLog: binary.LittleEndian.Uint64(b[25:])}
	r.held = b[33+copy(r.files[:], b[33:]):]
	if r.kind == ranSynced {
		r.rewrite = rewrite{changes: r.changes, next: r.inLog}
		r.changes, r.inLog = 0, 0
		if mark == nil {
			return nil, errors.New("it doesn't say how far the AOF went")
		}
		r.mark.bytes = int64(binary.LittleEndian.Uint64(mark))
		copy(r.mark.sum[:], mark[8:])
	}
	return r, nil
}

// inodeOf returns a file's inode number, 0 if it isn't known.
func inodeOf(info os.FileInfo, err error) uint64 {
	if err != nil {
		return 0
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

// write writes the file. After a crash either the old file is there or the new one.
func (r *lastRun) write(name string) error {
	return replaceFile(name, func(f *os.File) []byte {
		r.inode = inodeOf(f.Stat())
		b := append([]byte(stateMagic), r.kind)
		changes, inLog := r.changes, r.inLog
		if r.kind == ranSynced {
			changes, inLog = r.rewrite.changes, r.rewrite.next
		}
		for _, v := range [...]uint64{r.process, changes, r.inode, inLog} {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		b = append(append(b, r.files[:]...), r.held...)
		sum := sha256.Sum256(b)
		b = append(b, sum[:]...)
		if r.kind == ranSynced {
			b = r.mark.append(b)
		}
		return b
	})
}

// replaceFile writes a file. After a crash either the old file is there or the new one.
// content is called when the new file exists, because it may contain that file's inode.
func replaceFile(name string, content func(*os.File) []byte) error {
	temp := name + ".tmp"
	f, err := os.Create(temp)
	if err != nil {
		return err
	}
	_, err = f.Write(content(f))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		if err = os.Rename(temp, name); err == nil {
			return syncDir(filepath.Dir(name))
		}
	}
	return errors.Join(err, os.Remove(temp))
}

func (k *logMark) append(b []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(k.bytes)), k.sum[:]...)
}

// note writes the mark into a running process's file, without a sync: after a loss of power
// an older mark may count. A mark that was written halfway fits no log.
func (k *logMark) note(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(k.append(nil), int64(markAt))
	return errors.Join(err, f.Close())
}

// syncDir makes changes of a folder's entries survive a loss of power.
func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// removeState removes a state file, or empties it, so that it vouches for nothing any more.
func removeState(name string) error {
	err := os.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		// The folder may be read-only, though the file can be written.
		if os.Truncate(name, 0) != nil {
			return err
		}
		return nil
	}
	return syncDir(filepath.Dir(name))
}

// useState removes the last process's state files before anything is delivered. One may be
// in the current folder. Another may be in the folder where this process began, if the data
// were loaded from another dir since. useState returns false if a file can't be removed.
// Then the file must not count now either, as it would count again at the next start.
func (m *module) useState() bool {
	names := []string{m.stateName()}
	if len(m.mesh.files) > 0 {
		first := filepath.Dir(m.mesh.files[0])
		if dir, err := os.Getwd(); err != nil || dir != first {
			names = append(names, filepath.Join(first, m.stateName()))
		}
	}
	removed := true
	for _, name := range names {
		if err := removeState(name); err != nil {
			m.server.Log(rm.Warning, "%s can't be removed, so it doesn't count: remove it before the next start: %v", name, err)
			removed = false
		}
	}
	return removed
}

// logFiles sums up the AOF's files by their names, sizes and last bytes. It returns zero if
// the AOF is off.
func (m *module) logFiles() aofSum {
	if v, err := m.server.ConfigValue("appendonly"); err != nil || v != "yes" {
		return aofSum{}
	}
	return m.sumLog(hashTail)
}

// logInodes sums up the AOF's files by their names and inodes, and by the sizes of those
// that are no longer written to.
func (m *module) logInodes() aofSum {
	files, err := m.usedFiles()
	if err != nil {
		return aofSum{}
	}
	return sumInodes(files)
}

// sumInodes is logInodes of the given files. The manifest is no part of the sum: the server
// also writes it when it removes the files that it doesn't use any more.
func sumInodes(files []string) aofSum {
	return sumFiles(nil, files, func(h io.Writer, file string, last bool) error {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %d", filepath.Base(file), inodeOf(info, nil))
		if !last {
			fmt.Fprintf(h, " %d", info.Size())
		}
		fmt.Fprintln(h)
		return nil
	})
}

// usedFiles returns the paths of the AOF's files, at least one. The last is the one that is
// written.
func (m *module) usedFiles() (files []string, err error) {
	if _, files, err = m.logManifest(); err == nil && len(files) == 0 {
		err = errors.New("its manifest names no file")
	}
	return files, err
}

// markLog makes the mark of the AOF's last file.
func (m *module) markLog() (mark logMark, err error) {
	files, err := m.usedFiles()
	if err != nil {
		return mark, err
	}
	return markFile(files[len(files)-1], -1)
}

// markFile makes the mark of a file at the given byte; -1: at its end.
func markFile(file string, bytes int64) (mark logMark, err error) {
	f, err := os.Open(file)
	if err != nil {
		return mark, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return mark, err
	}
	if bytes < 0 {
		bytes = size
	}
	if bytes > size {
		return mark, fmt.Errorf("%s has %d bytes, and had %d when the server ran", filepath.Base(f.Name()), size, bytes)
	}
	tail := make([]byte, min(bytes, tailBytes))
	if _, err := f.ReadAt(tail, bytes-int64(len(tail))); err != nil {
		return mark, err
	}
	mark.bytes = bytes
	mark.sum = sha256.Sum256(binary.LittleEndian.AppendUint64(tail, uint64(bytes)))
	return mark, nil
}

// isUnfit says why the AOF's files aren't those of which a running process's file vouches.
// Nil: they are, and the log may go on after the file's mark. They may be
//
//   - the files that r names;
//   - these, and an empty one. The server ended when it had begun a rewrite, before it logged
//     anything else;
//   - what the rewrite makes that r names: a base, and the file that the server began with
//     the rewrite. The base has all that was before it, that file has all since, so they lack
//     nothing. The server ended when the rewrite had succeeded, before r was replaced.
//     Nothing knows the base's inode before, so the base must have the rewrite's epoch when it
//     is loaded: rebased asks for that. A base without an epoch doesn't count; that is an AOF
//     of commands (aof-use-rdb-preamble no), or on some servers an RDB without queues and locks.
func (m *module) isUnfit(r *lastRun) (rebased bool, err error) {
	files, err := m.usedFiles()
	if err != nil {
		return false, err
	}
	last := len(files) - 1
	switch info, err := os.Stat(files[last]); {
	case err != nil:
		return false, err
	case r.files == sumInodes(files):
	case last > 0 && info.Size() == 0 && r.files == sumInodes(files[:last]):
		last--
	case last == 1 && r.rewrite.next != 0 && r.rewrite.next == inodeOf(info, nil):
		rebased = true
	default:
		return false, errors.New("the AOF's files aren't those that it names")
	}
	now, err := markFile(files[last], r.mark.bytes)
	if err == nil && now.sum != r.mark.sum {
		err = fmt.Errorf("the AOF isn't as it was when the server ran: up to byte %d of its last file it is another", r.mark.bytes)
	}
	return rebased, err
}

// sumLog sums up the AOF's manifest, and what add writes for each of its files. It returns
// zero if there are no files, or if they can't be read.
func (m *module) sumLog(add func(h io.Writer, file string, last bool) error) (sum aofSum) {
	manifest, files, err := m.logManifest()
	if err != nil {
		return sum
	}
	return sumFiles(manifest, files, add)
}

// sumFiles is sumLog of the given files.
func sumFiles(manifest []byte, files []string, add func(h io.Writer, file string, last bool) error) (sum aofSum) {
	h := sha256.New()
	h.Write(manifest)
	for i, file := range files {
		if err := add(h, file, i == len(files)-1); err != nil {
			return aofSum{}
		}
	}
	h.Sum(sum[:0])
	return sum
}

// logManifest returns the AOF's manifest and the paths of the files that it names. The file
// that is written last is the last. Files that are no longer used are left out.
func (m *module) logManifest() (manifest []byte, files []string, err error) {
	dir, name, err := m.logPath()
	if err != nil {
		return nil, nil, err
	}
	if manifest, err = os.ReadFile(filepath.Join(dir, name+".manifest")); err != nil {
		return nil, nil, err
	}
	for line := range strings.Lines(string(manifest)) {
		// file <name> seq <number> type <b, i, or h for one that isn't used any more>; newer
		// servers add offsets.
		line = strings.TrimSpace(line)
		name, rest, _ := strings.Cut(strings.TrimPrefix(line, "file "), " seq ")
		if unquoted, err := strconv.Unquote(name); err == nil {
			name = unquoted
		}
		if _, kind, _ := strings.Cut(rest, " type "); !strings.HasPrefix(kind, "h") && strings.HasPrefix(line, "file ") {
			files = append(files, filepath.Join(dir, name))
		}
	}
	return manifest, files, nil
}

// logPath returns the folder of the AOF's files, and what their names begin with.
func (m *module) logPath() (dir, name string, err error) {
	var path [3]string
	for i, parameter := range []string{"dir", "appenddirname", "appendfilename"} {
		if path[i], err = m.server.ConfigValue(parameter); err != nil {
			return "", "", err
		}
	}
	return filepath.Join(path[0], path[1]), path[2], nil
}

func hashTail(h io.Writer, file string, _ bool) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	fmt.Fprintf(h, "%s %d\n", filepath.Base(file), size)
	_, err = io.Copy(h, io.NewSectionReader(f, max(0, size-tailBytes), tailBytes))
	return err
}

// whole says whether the data that was just loaded is known to be all that there was. If
// so, it applies the deliveries that the state file has besides.
func (m *module) whole() bool {
	r := m.last
	m.last, m.inOrder = nil, false
	fits := false
	switch {
	case m.phase == rm.LoadRDB && m.saved.Process == m.epoch.Process:
		return m.saved.Changes == m.epoch.Changes // DEBUG RELOAD
	case m.phase == rm.LoadAOF && m.inLog == m.epoch.Process: // DEBUG LOADAOF, which writes the AOF before it loads it
		m.watchGap()
		return !m.gap && !m.server.EffectsKept()
	case r == nil:
	case m.phase == rm.LoadRDB:
		fits = r.kind == ranClean && r.process == m.saved.Process && r.changes == m.saved.Changes
	case m.phase == rm.LoadAOF && r.kind == ranClean:
		fits = r.files != aofSum{} && r.files == m.files && r.inLog == m.inLog
	case m.phase == rm.LoadAOF && r.kind == ranSynced:
		err := m.unfit
		switch {
		case r.process != m.inLog:
			err = errors.New("the AOF's last entries aren't those of the process that wrote it")
		case err == nil && m.rebased && m.base != (record.Epoch{Process: r.process, Changes: r.rewrite.changes}):
			err = errors.New("the AOF's base isn't what the rewrite wrote that ran at the end")
		}
		if fits = err == nil; !fits {
			m.passOver(err)
		}
	}
	if !m.useState() || !fits {
		return false
	}
	if err := m.applyHeld(r.held); err != nil {
		m.server.Log(rm.Warning, "%s: jobs that were in somebody's hands are queued: %v", m.stateName(), err)
		return true
	}
	m.inOrder = r.kind == ranClean && r.process == m.knowing
	return true
}

// applyHeld sets the state of the jobs that clients were working on; an RDB has it already. It notes the votes that were
// taken back: endVotes goes on with them.
func (m *module) applyHeld(b []byte) error {
	next := func() (v []byte, ok bool) {
		n, used := binary.Uvarint(b)
		if used <= 0 || n > uint64(len(b)-used) {
			return nil, false
		}
		v, b = b[used:used+int(n)], b[used+int(n):]
		return v, true
	}
	for len(b) > 0 {
		rec, ok := next()
		parts, ok2 := next()
		if !ok || !ok2 {
			return errors.New("the list ends early")
		}
		if len(rec) == 0 {
			m.endedVotes = append(m.endedVotes, parts)
			continue
		}
		if m.phase != rm.LoadAOF {
			continue
		}
		if err := m.node.LoadState(rec, parts); err != nil {
			return err
		}
	}
	return nil
}

// endVotes takes back the votes for acquisitions that ended with the process before, when everything was saved. Its data have
// these votes, and its jobs are settled.
func (m *module) endVotes() {
	for _, b := range m.endedVotes {
		if len(b) > voteEndBytes {
			m.node.Locks().EndVote(lock.UnlockParts(b))
		}
	}
	m.endedVotes = nil
}

const voteEndBytes = 8 // of the token, before the lock's name

// heldJobs makes the list for applyHeld: the jobs that clients were given, while no log
// says so.
func (m *module) heldJobs() (b []byte) {
	for _, q := range m.allQueues() {
		for j := q.Working.Head; j != nil; j = j.Next {
			if j.Retry > 0 {
				b = appendHeld(b, j)
			}
		}
	}
	m.node.DormantInHands(func(j *store.Job) { b = appendHeld(b, j) })
	return b
}

func appendHeld(b []byte, j *store.Job) []byte {
	return appendBytes(appendBytes(b, j.StateRecord()), j.RawParts())
}

func appendBytes(b, v []byte) []byte { return append(binary.AppendUvarint(b, uint64(len(v))), v...) }

func (m *module) allQueues() []*store.Queue {
	m.queues = m.queues[:0]
	for cursor := uint64(0); ; {
		if cursor = m.node.ScanQueues(cursor, &m.queues); cursor == 0 {
			return m.queues
		}
	}
}

// ended is called when the server is to end and everything else is saved.
func (m *module) ended(*rm.Ctx) {
	if m.node.Loading() {
		return // the data and the files are as they were
	}
	m.node.Ends()
	m.tellFlushed()
	// A command that was answered a moment ago, such as FORGET or DEL, may not be in the file yet.
	if err := m.saveNodes(); err != nil {
		m.server.Log(rm.Warning, "the nodes' file can't be written, so the next start may lack which nodes were forgotten, and which queues deleted, last: %v", err)
	}
	held := m.heldJobs()
	m.keepEnd(held, m.farewell())
	if m.mesh.bus != nil {
		m.mesh.bus.Flush()
	}
}

// keepEnd writes the state file of a clean shutdown.
func (m *module) keepEnd(held, votes []byte) {
	m.unsync()
	if m.node.Passive() || m.server.EffectsKept() {
		return // a replica's data lack what its master does; kept effects are not logged yet
	}
	r := lastRun{kind: ranClean, process: m.epoch.Process, changes: m.epoch.Changes, inLog: m.inLog}
	if m.watchGap(); !m.gap {
		r.files = m.logFiles()
	}
	if r.files != (aofSum{}) {
		// SHUTDOWN FORCE ends the process even if the log can't be written.
		if v, ok := m.server.InfoField("persistence", "aof_last_write_status"); !ok || v != "ok" || m.doubt.at != 0 {
			return
		}
		r.held = held
	}
	r.held = append(r.held, votes...)
	if err := r.write(m.stateName()); err != nil {
		m.server.Log(rm.Warning, "%s can't be written, so the next start takes what was saved for what a crash has left: %v", m.stateName(), err)
	}
}

// firstTurn is called once, when all is loaded: by a timer, or by the first client that is heard before that. It logs which process writes the AOF. If
// each change is on disk before its answer leaves, it also writes the state file.
func (m *module) firstTurn(c *rm.Ctx) {
	if !m.starting {
		return
	}
	m.starting = false
	m.last = nil
	m.useState() // if nothing was loaded, the file is still there
	m.keepTokens()
	m.logProcess(c)
	if m.node.Passive() || m.inLog != m.epoch.Process || !m.syncsAlways() {
		return
	}
	// The file is written before the log has what names this process: the client that is heard now is answered as soon as the log is
	// written. If the server ends in between, the log doesn't name this process, and the file counts for nothing.
	name, err := filepath.Abs(m.stateName())
	if err == nil {
		err = m.writeSynced(name, m.logInodes(), rewrite{})
	}
	if err != nil {
		m.server.Log(rm.Warning, "%s can't be written, so at-most-once jobs that wait are not queued again after a crash: %v", m.stateName(), err)
		return
	}
	m.synced = name
}

// syncsAlways says whether the AOF is on disk before an answer leaves.
func (m *module) syncsAlways() bool {
	for name, want := range map[string]string{"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"} {
		if v, err := m.server.ConfigValue(name); err != nil || v != want {
			return false
		}
	}
	return true
}

// watchSync follows changes of the server's parameters. Once a parameter differs from the
// start's, the log isn't known to be whole any more, even if the parameter is changed back:
// what wasn't on disk in between may be missing.
func (m *module) watchSync() { m.watchLog(m.rewrite) }

// watchLog is watchSync, with the rewrite that runs.
func (m *module) watchLog(r rewrite) {
	m.tellAOF()
	m.watchGap()
	if m.watchDir() {
		m.keepNodes()
	}
	if m.synced == "" {
		return
	}
	dir, err := os.Getwd()
	if err != nil || dir != filepath.Dir(m.synced) || !m.syncsAlways() {
		m.unsync()
		return
	}
	if now := m.logInodes(); now != m.inodes || r != m.rewrite {
		err = m.writeSynced(m.synced, now, r)
	} else {
		err = m.noteMark()
	}
	if err != nil {
		m.server.Log(rm.Warning, "%s can't be written: %v", m.synced, err)
		m.unsync()
	}
}

// begun returns the rewrite whose child the server has just made; zero if the child does
// something else.
func (m *module) begun() (r rewrite) {
	if m.synced == "" || !m.rewriting() {
		return r
	}
	files, err := m.usedFiles()
	if err != nil {
		return r
	}
	return rewrite{changes: m.epoch.Changes, next: inodeOf(os.Stat(files[len(files)-1]))}
}

// writeSynced writes the state file of a running process. files are the inodes of its log.
func (m *module) writeSynced(name string, files aofSum, r rewrite) error {
	mark, err := m.markLog()
	if err == nil {
		err = (&lastRun{kind: ranSynced, process: m.epoch.Process, files: files, mark: mark, rewrite: r}).write(name)
	}
	if err == nil {
		m.inodes, m.marked, m.rewrite = files, mark.bytes, r
	}
	return err
}

// noteMark writes down how far the log goes, if it has grown.
func (m *module) noteMark() error {
	mark, err := m.markLog()
	if err != nil || mark.bytes == m.marked {
		return err
	}
	m.marked = mark.bytes
	return mark.note(m.synced)
}

// watchGap notes that the AOF is off. Its files count again once the AOF was rewritten:
// until then the files on disk are older than the gap.
func (m *module) watchGap() {
	if v, err := m.server.ConfigValue("appendonly"); err != nil || v != "yes" {
		m.gap, m.off = true, true
		return
	}
	if !m.gap {
		return
	}
	now := m.logInodes()
	if m.off { // it was just switched on, and the server is about to rewrite it
		m.off, m.gapFiles = false, now
	}
	m.gap = now == m.gapFiles
}

func (m *module) unsync() {
	if m.synced == "" {
		return
	}
	if err := removeState(m.synced); err != nil {
		m.server.Log(rm.Warning, "%s can't be removed, though the AOF may end before what was answered: remove it before the next start: %v", m.synced, err)
	}
	m.synced = ""
}

// logProcess logs which process writes the AOF, and which at-most-once jobs of the data
// before are uncertain.
func (m *module) logProcess(c *rm.Ctx) {
	if m.node.Passive() {
		return
	}
	if !c.Listened() {
		m.doubt = doubt{}
		return
	}
	d := m.doubt
	n := 2
	if d.at != 0 {
		n = 4
	}
	args := c.Replicate(m.effect.jobmesh, n)
	args.Text("EPOCH")
	args.Text(strconv.FormatUint(m.epoch.Process, 16))
	if d.at != 0 {
		args.Text(strconv.FormatInt(d.at, 10))
		args.Text(strconv.FormatUint(d.last, 10))
	}
	m.inLog, m.doubt = m.epoch.Process, doubt{}
}
