package bus

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

// Constants from which the key and the proofs are made; see PROTOCOL.md.
const (
	keySalt       = "jobmesh bus"
	keyInfo       = "proof of the cluster secret, version 1"
	exporterLabel = "EXPERIMENTAL-jobmesh-bus"
	exporterSize  = 32

	roleDialler  = 'D'
	roleListener = 'L'
)

// shortSecret is the length in bytes below which the log warns about a secret: an attacker that
// a node dials can test guesses at it.
const shortSecret = 16

// security is how a bus encrypts and proves. A nil one does neither.
type security struct {
	key    []byte
	server *tls.Config
	client *tls.Config
}

func newSecurity(secret []byte) (*security, error) {
	key, err := deriveKey(secret)
	if err != nil {
		return nil, err
	}
	cert, err := selfSigned()
	if err != nil {
		return nil, err
	}
	s := &security{
		key:    key,
		server: &tls.Config{Certificates: []tls.Certificate{cert}},
		// The proofs are bound to the session's key. So they show that nobody sits in between;
		// a certificate that was made a moment ago couldn't show that.
		client: &tls.Config{InsecureSkipVerify: true},
	}
	for _, c := range []*tls.Config{s.server, s.client} {
		c.MinVersion = tls.VersionTLS13
		c.SessionTicketsDisabled = true
		c.ClientSessionCache = nil
		c.DynamicRecordSizingDisabled = true
	}
	return s, nil
}

func deriveKey(secret []byte) ([]byte, error) {
	return hkdf.Key(sha256.New, secret, []byte(keySalt), keyInfo, sha256.Size)
}

// proof is a MAC that shows knowledge of the key, in this role, on this very connection, after
// these hellos.
func proof(key []byte, role byte, exported, dialler, listener []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte{role})
	mac.Write(exported)
	for _, hello := range [][]byte{dialler, listener} {
		mac.Write(binary.BigEndian.AppendUint16(nil, uint16(len(hello))))
		mac.Write(hello)
	}
	return mac.Sum(nil)
}

// selfSigned makes a certificate that lives as long as the process.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Unix(0, 0),
		NotAfter:     time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// notTLS explains why a handshake as a client failed, if the answer wasn't TLS.
func notTLS(err error) error {
	var record tls.RecordHeaderError
	if !errors.As(err, &record) {
		return broken(err, "TLS: %v", err)
	}
	if head := record.RecordHeader[:]; string(head) != magic[:len(head)] {
		return broken(ErrNotBus, "%v: it answers %q", ErrNotBus, head)
	}
	return broken(ErrSecret, "%v: this node has one, the peer has none", ErrSecret)
}

// loopbackOnly returns an error for an address that isn't on this machine.
func loopbackOnly(ip net.IP) error {
	if ip == nil {
		return fmt.Errorf("%w (no host means all addresses): set a secret", ErrLoopback)
	}
	if !ip.IsLoopback() {
		return fmt.Errorf("%w (%v isn't): set a secret", ErrLoopback, ip)
	}
	return nil
}
