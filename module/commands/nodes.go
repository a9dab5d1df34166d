package commands

import (
	"errors"
	"fmt"
	"os"
	"strings"

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
	return b.String()
}

// loadNodes gives the node the name it had before, or writes down its first
// one. The file has the lines of CLUSTER NODES.
func (m *module) loadNodes() error {
	text, err := os.ReadFile(m.nodesFile)
	if errors.Is(err, os.ErrNotExist) {
		m.node.StandAlone()
		m.keepNodes()
		return nil
	}
	if err != nil {
		return fmt.Errorf("the nodes' file can't be read: %w", err)
	}
	var others [][]string
	found := false
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
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
	if len(others) == 0 {
		m.node.StandAlone()
	}
	for _, f := range others {
		if err := m.readPeer(f); err != nil {
			return fmt.Errorf("%s: node %s: %w", m.nodesFile, f[0], err)
		}
	}
	if found {
		return nil
	}
	return fmt.Errorf("%s names no node as myself: mend it, or remove it and the node gets a new ID", m.nodesFile)
}

// saveNodes writes the file so that a crash leaves the old one or the new one.
func (m *module) saveNodes() error { return writeNodes(m.nodesFile, m.nodesText(true)) }

func writeNodes(file, text string) error {
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
	return os.Rename(temp, file)
}

// keepNodes saves where it can: a node in a read-only folder works, under
// another ID after each start.
func (m *module) keepNodes() {
	if err := m.saveNodes(); err != nil {
		m.server.Log(rm.Warning, "the nodes' file can't be written, so this node's ID will not outlive it: %v", err)
	}
}
