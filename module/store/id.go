package store

import (
	"encoding/binary"
	"math/bits"
)

// ID is a job ID in binary: 4 bytes of the creating node's ID, 18 random
// bytes, and the TTL in minutes, big endian. As text it has Disque's 40
// characters: D-, 8 hex digits, -, 24 of base64, -, 4 hex digits.
type ID [24]byte

// IDLen is the length of an ID as text.
const IDLen = 40

const (
	b64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	hex = "0123456789abcdef"
	bad = 0xff
)

// The reverse tables; entries for other characters are bad.
var (
	unb64 = reverse(b64)
	unhex = reverse(hex)
)

func reverse(alphabet string) (t [256]uint8) {
	for i := range t {
		t[i] = bad
	}
	for i := range len(alphabet) {
		t[alphabet[i]] = uint8(i)
	}
	return t
}

// ParseID reads an ID's text. ok is the result of Disque's shallow check: if it is false,
// the answer is -BADID. canonical says whether some ID has exactly this text; if it is
// false, no job has this text as its ID.
func ParseID(b []byte) (id ID, canonical, ok bool) {
	if len(b) != IDLen || b[0] != 'D' || b[1] != '-' || b[10] != '-' || b[35] != '-' {
		return id, false, false
	}
	p := (*[IDLen]byte)(b)
	var wrong uint8
	for i := range 4 {
		h, l := unhex[p[2+2*i]], unhex[p[3+2*i]]
		wrong |= h | l
		id[i] = h<<4 | l
	}
	for i := range 2 {
		h, l := unhex[p[36+2*i]], unhex[p[37+2*i]]
		wrong |= h | l
		id[22+i] = h<<4 | l
	}
	// Values of hex digits are below 16, and of base64 below 64: only bad has the top bit.
	for i := range 6 {
		c0, c1, c2, c3 := unb64[p[11+4*i]], unb64[p[12+4*i]], unb64[p[13+4*i]], unb64[p[14+4*i]]
		wrong |= c0 | c1 | c2 | c3
		id[4+3*i], id[5+3*i], id[6+3*i] = c0<<2|c1>>4, c1<<4|c2>>2, c2<<6|c3
	}
	return id, wrong&0x80 == 0, true
}

// Put writes the ID's text.
func (id *ID) Put(dst *[IDLen]byte) {
	dst[0], dst[1], dst[10], dst[35] = 'D', '-', '-', '-'
	for i := range 4 {
		dst[2+2*i], dst[3+2*i] = hex[id[i]>>4], hex[id[i]&15]
	}
	for i := range 6 {
		v := uint32(id[4+3*i])<<16 | uint32(id[5+3*i])<<8 | uint32(id[6+3*i])
		dst[11+4*i], dst[12+4*i], dst[13+4*i], dst[14+4*i] = b64[v>>18], b64[v>>12&63], b64[v>>6&63], b64[v&63]
	}
	for i := range 2 {
		dst[36+2*i], dst[37+2*i] = hex[id[22+i]>>4], hex[id[22+i]&15]
	}
}

// AppendText appends the ID's text.
func (id *ID) AppendText(dst []byte) []byte {
	var t [IDLen]byte
	id.Put(&t)
	return append(dst, t[:]...)
}

// String returns the ID's text.
func (id ID) String() string { return string(id.AppendText(nil)) }

// TTLMinutes is the TTL in the ID, in minutes, at most 65535.
func (id *ID) TTLMinutes() uint16 { return uint16(id[22])<<8 | uint16(id[23]) }

// AtMostOnce says whether the job's retry time is 0: its TTL is even.
func (id *ID) AtMostOnce() bool { return id[23]&1 == 0 }

// IDMaker makes the IDs of new jobs.
//
// The format has 18 bytes that should be random. 8 of them are random, and 2 are a seal: a keyed hash of the
// other bytes. So nobody can guess an ID. The other 8 are a counter, which goes through a bijection so that nobody sees
// its value. The counter makes IDs unique for certain. It also gives the table of jobs an order: a store undoes the
// bijection to hash an ID, so jobs that are made one after the other lie in buckets one after the other. Then adding,
// fetching and acknowledging in order walks through memory in order.
//
// Only an ID with the seal is hashed so. Clients may send whatever IDs they like, also of jobs that nobody has, and of
// 65,536 of them one has the seal by chance. The others are hashed by a key that no ID gives away. So nobody can fill
// one bucket.
type IDMaker struct {
	Node    [4]byte // the first four bytes of the node's ID
	keys    keys
	counter uint64
}

// Make makes an ID. retry says whether the job's retry time is above 0. random must be random. The
// number behind it isn't used: the seal has taken its place, and scripts of the engine expect that an ID draws two.
func (m *IDMaker) Make(random, _ uint64, ttlSeconds int64, retry bool) (id ID) {
	minutes := min(max(ttlSeconds/60, 0), 0xffff)
	if retry {
		minutes |= 1
	} else {
		minutes &^= 1
	}
	m.counter++
	// The ID is made in three words, for the processor reads it as three words next: it would wait for smaller writes.
	number := scramble(m.counter ^ m.keys.id)
	w := [3]uint64{
		uint64(binary.LittleEndian.Uint32(m.Node[:])) | random<<32,
		random>>32 | number<<48,
		number>>16 | uint64(bits.ReverseBytes16(uint16(minutes)))<<48,
	}
	w[1] |= uint64(m.keys.seal(m.keys.unsealedWords(w[0], w[1], w[2]))) << sealAt
	for i := range w {
		binary.LittleEndian.PutUint64(id[8*i:], w[i])
	}
	return id
}

// Number is the number of an ID that this store's IDMaker has made: each ID has the number after that of the one before.
// For other IDs it is any number.
func (s *Store) Number(id *ID) uint64 { return s.hashID(id) }

// hashID is the hash of an ID in tables.
func (s *Store) hashID(id *ID) uint64 {
	h, seal := s.keys.unsealed(id), binary.LittleEndian.Uint16(id[12:])
	if s.keys.seal(h) == seal {
		return unscramble(binary.LittleEndian.Uint64(id[14:])) ^ s.keys.id
	}
	return s.keys.sealed(h, seal)
}

// digest tells IDs apart: nobody can make two that share a digest.
func (s *Store) digest(id *ID) uint64 {
	return s.keys.sealed(s.keys.unsealed(id), binary.LittleEndian.Uint16(id[12:]))
}

// unsealed is a hash of an ID without its seal.
func (k *keys) unsealed(id *ID) uint64 {
	return k.unsealedWords(binary.LittleEndian.Uint64(id[:]), binary.LittleEndian.Uint64(id[8:]), binary.LittleEndian.Uint64(id[16:]))
}

// sealAt is where the seal begins in the second word of an ID: it is in bytes 12 and 13.
const sealAt = 32

func (k *keys) unsealedWords(a, b, c uint64) uint64 {
	return mix(mix(a^k.mix[0], b&^(0xffff<<sealAt)^k.mix[1])^c, k.mix[2])
}

// seal is the seal of an ID with that hash. It shows too little of the hash to find a key.
func (k *keys) seal(unsealed uint64) uint16 { return uint16(mix(unsealed^k.mix[3], k.mix[4]) >> 32) }

// sealed is the hash of an ID with its seal.
func (k *keys) sealed(unsealed uint64, seal uint16) uint64 {
	return mix(unsealed^uint64(seal), k.mix[5])
}

// The constants of the bijection are those of MurmurHash3's finalizer, and
// their inverses modulo 2^64.
const (
	mul1, mul2 = 0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53
	inv1, inv2 = 0x4f74430c22a54005, 0x9cb4b2f8129337db
)

func scramble(v uint64) uint64 {
	v = (v ^ v>>33) * mul1
	v = (v ^ v>>33) * mul2
	return v ^ v>>33
}

func unscramble(v uint64) uint64 {
	v = (v ^ v>>33) * inv2
	v = (v ^ v>>33) * inv1
	return v ^ v>>33
}
