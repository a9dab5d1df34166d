package clients

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// offline matches npm's output if it got no answer from the registry.
var offline = regexp.MustCompile(`ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET_TIMEOUT|ENOTCACHED`)

// install puts the clients and the scripts that use them into a folder.
func install(t *testing.T) string {
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not on this machine, so Node's clients are not tested", program)
		}
	}
	dir := t.TempDir()
	files, err := filepath.Glob("*.js*")
	require.NoError(t, err)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	out, err := run(t, dir, 2*time.Minute, nil, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	if err != nil && offline.Match(out) {
		t.Skipf("npm's registry can't be reached, so Node's clients are not tested: %s", offline.Find(out))
	}
	require.NoError(t, err, "npm ci: %s", out)
	return dir
}

func run(t *testing.T, dir string, limit time.Duration, env []string, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.Bytes(), err
}

func TestNode(t *testing.T) {
	dir := install(t)
	for _, client := range []string{"disqueue-node", "thunk-disque", "ioredis"} {
		t.Run(client, func(t *testing.T) {
			s := harness.Start(t, harness.WithModuleArgs("disque-compat yes"))
			out, err := run(t, dir, time.Minute, []string{"PORT=" + strconv.Itoa(s.Port)}, "node", client+".js")
			require.NoError(t, err, "%s", out)
			t.Logf("%s", out)
		})
	}
}
