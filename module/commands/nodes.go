package commands

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"jobmesh/rm"
)

// nodesText describes the nodes as CLUSTER NODES does (5.6), a line each.
func (m *module) nodesText() string {
	port, err := m.server.ConfigValue("port")
	if err != nil {
		port = "0"
	}
	flags := "myself"
	if m.node.Leaving() {
		flags += ",leaving"
	}
	return fmt.Sprintf("%s :%s %s 0 0 connected\n", m.node.NodeID(), port, flags)
}

// loadNodes gives the node the name it had before, or writes down its first
// one. The file has the lines of CLUSTER NODES.
func (m *module) loadNodes() error {
	text, err := os.ReadFile(m.nodesFile)
	if errors.Is(err, os.ErrNotExist) {
		m.keepNodes()
		return nil
	}
	if err != nil {
		return fmt.Errorf("the nodes' file can't be read: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 6 || !strings.HasPrefix(f[2], "myself") {
			continue
		}
		if len(f[0]) != 40 || strings.Trim(f[0], "0123456789abcdef") != "" {
			break
		}
		m.node.SetNodeID(f[0])
		m.node.SetLeaving(strings.HasSuffix(f[2], ",leaving"))
		return nil
	}
	return fmt.Errorf("%s names no node as myself: mend it, or remove it and the node gets a new ID", m.nodesFile)
}

// saveNodes writes the file so that a crash leaves the old one or the new one.
func (m *module) saveNodes() error {
	temp := m.nodesFile + ".tmp"
	f, err := os.Create(temp)
	if err != nil {
		return err
	}
	_, err = f.WriteString(m.nodesText())
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return os.Rename(temp, m.nodesFile)
}

// keepNodes saves where it can: a node in a read-only folder works, under
// another ID after each start.
func (m *module) keepNodes() {
	if err := m.saveNodes(); err != nil {
		m.server.Log(rm.Warning, "the nodes' file can't be written, so this node's ID will not outlive it: %v", err)
	}
}
