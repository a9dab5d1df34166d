package commands

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"jobmesh/module/engine"
	"jobmesh/rm"
)

// nodesText describes the nodes as CLUSTER NODES does (5.6), a line each; for
// the nodes' file with the addresses of their buses.
func (m *module) nodesText(forFile bool) string {
	flags := "myself"
	if m.node.Leaving() {
		flags += ",leaving"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s :%d %s 0 0 connected\n", m.node.NodeID(), m.clientPort(), flags)
	for _, p := range m.node.Peers() {
		b.WriteString(peerLine(p, forFile))
	}
	if v := m.node.Votes(); forFile && v.Longest >= 0 {
		fmt.Fprintf(&b, "%s longest-lease %d unleased %s new %s\n", varsLine, v.Longest, yesNo(v.Unleased), yesNo(v.New))
	}
	return b.String()
}

// varsLine begins the line of the nodes' file that isn't about a node, but what this
// one remembers of the votes for locks that it gave ([engine.Votes]).
const varsLine = "vars"

func parseVars(f []string) (v engine.Votes, err error) {
	for i := 1; i+1 < len(f) && err == nil; i += 2 {
		switch f[i] {
		case "longest-lease":
			v.Longest, err = strconv.ParseInt(f[i+1], 10, 64)
		case "unleased":
			v.Unleased = f[i+1] != "no"
		case "new":
			v.New = f[i+1] != "no"
		}
	}
	return v, err
}

// loadNodes gives the node the name it had before, or writes down its first
// one. The file has the lines of CLUSTER NODES.
func (m *module) loadNodes() error {
	text, err := os.ReadFile(m.nodesFile)
	if errors.Is(err, os.ErrNotExist) {
		m.node.SetVotes(engine.Votes{})
		m.keepNodes()
		return nil
	}
	if err != nil {
		return fmt.Errorf("the nodes' file can't be read: %w", err)
	}
	var others [][]string
	found := false
	votes := engine.Votes{Longest: -1, Unleased: true} // where the file is a former release's
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) > 0 && f[0] == varsLine {
			if votes, err = parseVars(f); err != nil {
				return fmt.Errorf("%s: %w", m.nodesFile, err)
			}
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
	if found {
		m.node.SetVotes(votes)
		return nil
	}
	return fmt.Errorf("%s names no node as myself: mend it, or remove it and the node gets a new ID", m.nodesFile)
}

// saveNodes writes the file so that a crash leaves the old one or the new one.
func (m *module) saveNodes() error {
	write, kept := m.nodesSave()
	err := write()
	if err == nil {
		kept()
	}
	return err
}

// nodesSave takes down what is to be written: write does that, on any thread; kept then
// tells the node what it can rely on.
func (m *module) nodesSave() (write func() error, kept func()) {
	m.mesh.saves++
	n, file, text, votes := m.mesh.saves, m.nodesFile, m.nodesText(true), m.node.Votes()
	return func() error { return m.mesh.file.write(n, file, text) }, func() {
		m.later(0, func(*rm.Ctx) {
			if n > m.mesh.kept && votes.Longest >= 0 {
				m.mesh.kept = n
				m.node.VotesKept(votes)
			}
		})
	}
}

// nodesFile keeps writers apart, and an older text from replacing a newer one:
// a command writes at once while another thread may still be at it.
type nodesFile struct {
	mu   sync.Mutex
	last uint64
}

func (w *nodesFile) write(n uint64, file, text string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n <= w.last {
		return nil
	}
	temp := file + ".tmp"
	f, err := os.Create(temp)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	if err := os.Rename(temp, file); err != nil {
		return err
	}
	w.last = n
	return syncDir(filepath.Dir(file))
}

// keepNodes saves where it can: a node in a read-only folder works, under
// another ID after each start.
func (m *module) keepNodes() {
	if err := m.saveNodes(); err != nil {
		m.server.Log(rm.Warning, "the nodes' file can't be written, so this node's ID will not outlive it: %v", err)
	}
}
