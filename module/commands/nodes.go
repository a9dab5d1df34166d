package commands

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/wire"
	"jobmesh/rm"
)

// nodesText describes the nodes as CLUSTER NODES does, a line each. For the nodes' file it
// adds the addresses of their buses, and this node's own lines.
func (m *module) nodesText(forFile bool) string {
	flags := "myself"
	if m.node.Leaving() {
		flags += ",leaving"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s:%d %s 0 0 connected\n", m.node.NodeID(), m.host(), m.clientPort(), flags)
	for _, p := range m.node.Mesh().All() {
		b.WriteString(peerLine(p, forFile))
	}
	if forFile {
		for _, id := range m.node.Mesh().Forgotten() {
			fmt.Fprintf(&b, "%s %v\n", forgottenLine, id)
		}
		b.WriteString(deletionsText(m.node.Deletions()))
		b.WriteString(pastText(m.node.Past()))
		b.WriteString(knownText(m.epoch.Process, m.node.Known()))
		v := m.node.Locks().Votes()
		b.WriteString(varsText(v, max(m.mesh.tokens, v.Tokens)))
	}
	return b.String()
}

// pastTimes are the times of [engine.Past] with the words that begin their lines in the nodes' file. A time in Unix
// milliseconds follows; behind line a number, and behind created a job's creation time.
func pastTimes(p *engine.Past) map[string]*int64 {
	return map[string]*int64{"promoted": &p.Promoted, "inexact": &p.Inexact, "line": &p.Line, "created": &p.Created}
}

func pastText(p engine.Past) string {
	times := pastTimes(&p)
	var b strings.Builder
	for _, word := range slices.Sorted(maps.Keys(times)) {
		if at := *times[word]; at > 0 {
			fmt.Fprintf(&b, "%s %d\n", word, at)
		}
	}
	return b.String()
}

// knownLine begins the line of the nodes' file for [engine.Known]. The process that wrote it follows, and then all, or for each node the
// first four bytes of its ID and a creation time; - stands for no nodes. Then the same for Gone.
const knownLine = "known"

func knownText(process uint64, k engine.Known) string {
	since := timesText(k.Since)
	if k.All {
		since = "all"
	}
	return fmt.Sprintf("%s %016x %s %s\n", knownLine, process, since, timesText(k.Gone))
}

func timesText(times map[uint32]uint64) string {
	var list []string
	for _, node := range slices.Sorted(maps.Keys(times)) {
		list = append(list, fmt.Sprintf("%08x:%d", node, times[node]))
	}
	return cmp.Or(strings.Join(list, ","), "-")
}

// parseTimes skips whatever it can't read.
func parseTimes(text string) map[uint32]uint64 {
	times := map[uint32]uint64{}
	eachTime(text, 32, func(node, at uint64) { times[uint32(node)] = at })
	return times
}

// eachTime reads a list of hexadecimal names of so many bits, each with a creation time. It skips whatever it can't read.
func eachTime(text string, bits int, do func(name, at uint64)) {
	for entry := range strings.SplitSeq(text, ",") {
		before, after, _ := strings.Cut(entry, ":")
		name, wrong := strconv.ParseUint(before, 16, bits)
		at, err := strconv.ParseUint(after, 10, 64)
		if wrong == nil && err == nil {
			do(name, at)
		}
	}
}

// parseKnown reads the fields of that line. Nothing is known of what it can't read.
func parseKnown(f []string) (process uint64, k engine.Known) {
	if len(f) != 4 {
		return 0, k
	}
	process, err := strconv.ParseUint(f[1], 16, 64)
	if err != nil {
		return 0, k
	}
	return process, engine.Known{All: f[2] == "all", Since: parseTimes(f[2]), Gone: parseTimes(f[3])}
}

// forgottenLine begins the line of the nodes' file for a node of [membership.Table.Forgotten]; its ID follows.
const forgottenLine = "forgotten"

// deletedLine begins the line of the nodes' file for [engine.Deletions]. The line has All,
// then each queue's hash and creation time, in their order; - stands for no queues.
const deletedLine = "deleted"

func deletionsText(d engine.Deletions) string {
	if d.All == 0 && len(d.Queues) == 0 {
		return ""
	}
	list := make([]string, len(d.Queues))
	for i, q := range d.Queues {
		list[i] = fmt.Sprintf("%016x:%d", q.Name, q.UpTo)
	}
	return fmt.Sprintf("%s %d %s\n", deletedLine, d.All, cmp.Or(strings.Join(list, ","), "-"))
}

// parseDeletions reads the fields of that line. It skips whatever it can't read.
func parseDeletions(f []string) (d engine.Deletions) {
	if len(f) != 3 {
		return d
	}
	d.All, _ = strconv.ParseUint(f[1], 10, 64)
	eachTime(f[2], 64, func(hash, at uint64) { d.Queues = append(d.Queues, engine.QueueDeleted{Name: hash, UpTo: at}) })
	return d
}

// varsLine begins the line of the nodes' file that tells what this node remembers of the
// votes for locks that it gave ([lock.Votes]).
const varsLine = "vars"

// errVarsDamaged reports a line whose checksum is wrong. A line of an older release has no
// checksum.
var errVarsDamaged = errors.New("what it says of votes for locks is damaged")

// varsText is that line, with the longest lease -1 if it isn't known; nothing if there is nothing to remember. Tokens up to
// tokens may have been given out; 0: that need not be remembered.
func varsText(v lock.Votes, tokens uint64) string {
	if !v.Longest.Known() && tokens == 0 {
		return ""
	}
	vars := fmt.Sprintf("%s longest-lease %d unleased %s new %s", varsLine, v.Longest.Max(), yesNo(v.Unleased), yesNo(v.New))
	if v.Longest != lock.LeasesUpTo(v.Longest.Max()) { // an older release reads only the longest of all
		vars += fmt.Sprintf(" leases %d,%d,%d", v.Longest[0], v.Longest[1], v.Longest[2])
	}
	if tokens > 0 {
		vars += fmt.Sprintf(" tokens %d", tokens)
	}
	return fmt.Sprintf("%s sum %08x\n", vars, crc32.ChecksumIEEE([]byte(vars)))
}

// parseVars reads that line. Tokens up to tokens may have been given out; 0: the line says
// nothing of them.
func parseVars(f []string) (v lock.Votes, tokens uint64, err error) {
	if n := len(f) - 2; n > 0 && f[n] == "sum" && f[n+1] != fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(strings.Join(f[:n], " ")))) {
		return v, 0, errVarsDamaged
	}
	for i := 1; i+1 < len(f) && err == nil; i += 2 {
		switch f[i] {
		case "longest-lease":
			var longest int64
			longest, err = strconv.ParseInt(f[i+1], 10, 64)
			v.Longest = lock.LeasesUpTo(longest)
		case "leases": // by kind; the line has it after longest-lease
			_, err = fmt.Sscanf(f[i+1], "%d,%d,%d", &v.Longest[0], &v.Longest[1], &v.Longest[2])
		case "unleased":
			v.Unleased = f[i+1] != "no"
		case "new":
			v.New = f[i+1] != "no"
		case "tokens":
			tokens, err = strconv.ParseUint(f[i+1], 10, 63)
		}
	}
	return v, tokens, err
}

// loadNodes gives the node the ID that it had before, or writes down its first ID. The file
// has the lines of CLUSTER NODES.
func (m *module) loadNodes() error {
	m.watchDir()
	text, err := os.ReadFile(m.nodesFile)
	if errors.Is(err, os.ErrNotExist) {
		m.node.Locks().SetVotes(lock.Votes{})
		m.node.StartsNew()
		m.keepNodes()
		return nil
	}
	if err != nil {
		return fmt.Errorf("the nodes' file can't be read: %w", err)
	}
	var others [][]string
	var forgotten []wire.NodeID
	found := false
	unknown := lock.Votes{Longest: lock.LeasesUpTo(-1), Unleased: true} // if an older release wrote the file
	votes, past := unknown, engine.Past{}
	times := pastTimes(&past)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) > 0 && f[0] == varsLine {
			switch votes, m.mesh.tokens, err = parseVars(f); {
			case errors.Is(err, errVarsDamaged):
				votes = unknown
				m.server.Log(rm.Warning, "%s: %v: this node votes for locks when enough others have told theirs, or lock-max-lease is over", m.nodesFile, err)
			case err != nil:
				return fmt.Errorf("%s: %w", m.nodesFile, err)
			}
			continue
		}
		if len(f) > 0 && f[0] == knownLine {
			m.knowing, m.known = parseKnown(f)
			continue
		}
		if len(f) > 0 && f[0] == deletedLine {
			m.node.SetDeletions(parseDeletions(f))
			continue
		}
		if len(f) == 2 && f[0] == forgottenLine {
			id, err := wire.ParseNodeID(f[1])
			if err != nil {
				return fmt.Errorf("%s: %s %s: give a node's ID, or remove the line: %w", m.nodesFile, forgottenLine, printable(f[1]), err)
			}
			forgotten = append(forgotten, id)
			continue
		}
		if len(f) == 2 && times[f[0]] != nil {
			at, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil || at < 0 {
				return fmt.Errorf("%s: %s %s: give a time in Unix milliseconds, or remove the line", m.nodesFile, f[0], printable(f[1]))
			}
			*times[f[0]] = at
			continue
		}
		if len(f) != 6 {
			continue
		}
		if !strings.HasPrefix(f[2], "myself") {
			others = append(others, f)
			continue
		}
		if len(f[0]) != 40 || strings.Trim(f[0], "0123456789abcdef") != "" {
			break
		}
		m.node.SetNodeID(f[0])
		m.node.SetLeaving(strings.HasSuffix(f[2], ",leaving"))
		found = true
	}
	for _, f := range others {
		if err := m.readPeer(f); err != nil {
			return fmt.Errorf("%s: node %s: %w", m.nodesFile, f[0], err)
		}
	}
	for _, id := range forgotten {
		m.node.Mesh().RestoreForgotten(id)
	}
	if found {
		m.node.SetPast(past)
		votes.Tokens = m.mesh.tokens
		m.node.Locks().SetVotes(votes)
		return nil
	}
	return fmt.Errorf("%s names no node as myself: mend it, or remove it and the node gets a new ID", m.nodesFile)
}

// keepTokens makes the next start's tokens greater than this one's, also after a crash: it
// writes down how far this start's tokens may go ahead of the clock.
func (m *module) keepTokens() {
	ahead := m.node.Locks().TokensAhead()
	if ahead == 0 {
		return
	}
	m.mesh.tokens = ahead
	if err := m.saveNodes(); err != nil {
		m.server.Log(rm.Warning, "%s can't be written, so after a crash in the next seconds the tokens of locks may not grow: %v", m.nodesFile, err)
	}
}

// saveNodes writes the nodes' file. After a crash either the old file is there or the new
// one.
func (m *module) saveNodes() error {
	write, kept := m.nodesSave()
	_, err := write()
	if err == nil {
		kept()
	}
	return err
}

// nodesSave records what is to be written. write writes it, on any thread. After that kept
// tells the node what it can rely on.
func (m *module) nodesSave() (write func() (stale bool, err error), kept func()) {
	m.watchDir()
	m.mesh.saves++
	n, files, text, votes, past := m.mesh.saves, slices.Clone(m.mesh.files), m.nodesText(true), m.node.Locks().Votes(), m.node.Past()
	return func() (bool, error) { return m.mesh.file.write(n, files, text) }, func() {
		m.later(0, func(*rm.Ctx) {
			m.node.PastKept(past)
			if n > m.mesh.kept && votes.Longest.Known() {
				m.mesh.kept = n
				m.node.Locks().VotesKept(votes)
			}
		})
	}
}

// watchDir follows the server's dir. The nodes' file is kept in each folder that has been
// the dir. The next start reads the file in the folder where this process began, or, after
// CONFIG REWRITE, in a later one. watchDir returns true if one more file has to be written.
func (m *module) watchDir() bool {
	file, err := filepath.Abs(m.nodesFile)
	if err != nil || slices.Contains(m.mesh.files, file) || slices.Contains(m.mesh.others, file) {
		return false
	}
	if len(m.mesh.files) > 0 {
		if id := myselfIn(file); id != "" && id != m.node.NodeID() {
			m.mesh.others = append(m.mesh.others, file)
			m.server.Log(rm.Warning, "%s is the nodes' file of node %s and stays as it is: a server that is started in that folder is that node, and not this one, which is %s", file, id, m.node.NodeID())
			return false
		}
	}
	m.mesh.files = append(m.mesh.files, file)
	return len(m.mesh.files) > 1
}

// myselfIn returns the node's ID that a nodes' file marks as its own; empty: it has none.
func myselfIn(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 6 && strings.HasPrefix(f[2], "myself") {
			return f[0]
		}
	}
	return ""
}

// nodesFile lets one writer write at a time, and keeps an older text from replacing a newer
// one: a command writes at once while another thread may still be writing.
type nodesFile struct {
	mu    sync.Mutex
	last  uint64
	stale bool
}

// write writes all files; the first lies in the folder of the start. stale says whether the
// next start may read an older text. If a file in another folder can't be written, it is
// removed: a node that finds no file has another ID, and nobody waits for what it
// remembers.
func (w *nodesFile) write(n uint64, files []string, text string) (stale bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n <= w.last {
		return w.stale, nil
	}
	for i, file := range files {
		wrong := replaceFile(file, func(*os.File) []byte { return []byte(text) })
		if wrong == nil {
			continue
		}
		if _, missing := os.Stat(file); errors.Is(missing, os.ErrNotExist) {
			if i > 0 {
				continue // no file is needed there, and the folder may be gone
			}
		} else if i == 0 || os.Remove(file) != nil {
			stale = true
		}
		err = errors.Join(err, wrong)
	}
	if err == nil {
		w.last = n
	}
	w.stale = stale
	return stale, err
}

// keepNodes saves the nodes' file if it can. A node in a read-only folder works, but has
// another ID after each start.
func (m *module) keepNodes() {
	if err := m.saveNodes(); err != nil {
		m.server.Log(rm.Warning, "the nodes' file can't be written, so this node's ID will not outlive it: %v", err)
	}
}
