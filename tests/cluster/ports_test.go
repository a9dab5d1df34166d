package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// Where clients come by TLS alone the bus's port follows from that port.
func TestBusPortOfTLS(t *testing.T) {
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	signed, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	require.NoError(t, err)
	private, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	file := func(name, kind string, b []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600))
		return path
	}
	public, secret := file("cert", "CERTIFICATE", signed), file("key", "EC PRIVATE KEY", private)
	port := harness.FreePort(t)
	s := harness.New(t, harness.WithConfig("port 0", fmt.Sprint("tls-port ", port), "tls-auth-clients no",
		"tls-cert-file "+public, "tls-key-file "+secret, "tls-ca-cert-file "+public))
	s.Launch()
	harness.Await(t, 10*time.Second, "the bus", func() bool {
		c, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", port+10000))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// An address that no node could dial is refused at the start.
func TestAnnounceIsAnAddress(t *testing.T) {
	for _, address := range []string{"10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:x", ":7711", "::1:7711:"} {
		s := harness.New(t, harness.WithConfig(`jobmesh.cluster-announce "`+address+`"`))
		s.Launch()
		s.AwaitEnd()
		require.Contains(t, s.Log()+s.Stderr(), "is no address of a bus", address)
	}
	s := harness.Start(t, harness.WithConfig(`jobmesh.cluster-announce "[::1]:7711"`))
	require.Equal(t, "::1", s.Do("JOBMESH", "HELLO").Elems[2].Elems[1].Str, "a host that is said is shown before anybody has come")
}

// A server without a port says that its node works alone.
func TestNoPortForTheBus(t *testing.T) {
	s := harness.New(t, harness.WithConfig("port 0", "unixsocket "+filepath.Join(t.TempDir(), "s")))
	s.Launch()
	harness.Await(t, 10*time.Second, "a word in the log", func() bool { return strings.Contains(s.Log(), "works alone. Set jobmesh.cluster-port") })
}

// The other nodes hear of the port that CONFIG SET has given a server.
func TestPortIsChanged(t *testing.T) {
	t.Parallel()
	m, port := start(t, 2), harness.FreePort(t)
	require.Equal(t, "OK", m[1].Do("CONFIG", "SET", "port", port).Str)
	m[1].Port = port
	require.Equal(t, "PONG", m[1].Do("PING").Str)
	harness.Await(t, 10*time.Second, "the other node to hear of it", func() bool {
		return strings.Contains(m[0].Do("JOBMESH", "CLUSTER", "NODES").Str, fmt.Sprintf("127.0.0.1:%d", port))
	})
}
