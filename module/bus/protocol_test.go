package bus

import (
	"bytes"
	"encoding/hex"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The examples in PROTOCOL.md are what the code does.
func TestExamplesOfTheProtocol(t *testing.T) {
	fill := func(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }
	exported := make([]byte, exporterSize)
	for i := range exported {
		exported[i] = byte(i)
	}
	key, err := deriveKey([]byte("correct horse battery staple"))
	require.NoError(t, err)
	dialler := (&hello{
		oldest: 1, newest: 1,
		id:       NodeID(fill(0x11, 20)),
		instance: instanceID(fill(0xaa, 16)),
		maxFrame: 1 << 20,
		port:     17711,
	}).append(nil)
	listener := (&hello{
		oldest: 1, newest: 2,
		id:       NodeID(fill(0x22, 20)),
		instance: instanceID(fill(0xbb, 16)),
		maxFrame: 1 << 20,
		features: 5,
		port:     17712,
		host:     "b.example",
	}).append(nil)
	number := []byte{0, 0, 0, 0, 0, 0, 0, 7}
	lost := make([]byte, 8)
	examples := map[string][]byte{
		"key":              key,
		"dialler's hello":  appendFrame([]byte(magic), kindHello, dialler),
		"listener's hello": appendFrame([]byte(magic), kindHello, listener),
		"dialler's proof": appendFrame(nil, kindProof,
			append(proof(key, roleDialler, exported, dialler, listener), lost...)),
		"listener's proof": appendFrame(nil, kindProof,
			append(proof(key, roleListener, exported, dialler, listener), lost...)),
		"accept":   appendFrame(nil, kindAccept, number),
		"part":     appendFrame(nil, kindPart, appendPart(nil, 70000, 69998, []byte("zz"))),
		"ping":     appendFrame(nil, kindPing, []byte("12345678")),
		"messages": appendFrame(nil, kindMessages, appendMessage(appendMessage(nil, []byte("hi")), fill('x', 200))),
		"close":    appendFrame(nil, kindClose, appendClose(nil, CodeShutdown, "bye")),
	}
	page, err := os.ReadFile("PROTOCOL.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)The ([a-z' ]+):\n\n```hex\n(.*?)```")
	found := 0
	for _, m := range block.FindAllStringSubmatch(string(page), -1) {
		want, ok := examples[m[1]]
		require.True(t, ok, m[1])
		got, err := hex.DecodeString(strings.Join(strings.Fields(m[2]), ""))
		require.NoError(t, err)
		require.Equal(t, hex.EncodeToString(want), hex.EncodeToString(got), m[1])
		found++
	}
	require.Len(t, examples, found, "examples that are missing")
}

// A host with its port, in brackets, has to fit the one byte that an address's length has in a heartbeat.
func TestTheLongestHost(t *testing.T) {
	h := hello{oldest: 1, newest: 1, id: NodeID{1}, instance: instanceID{1}, maxFrame: 1 << 20, port: 7, host: strings.Repeat("h", maxHost)}
	_, err := parseHello(h.append(nil))
	require.NoError(t, err)
	h.host += "h"
	_, err = parseHello(h.append(nil))
	require.ErrorContains(t, err, "host that is too long")
}
