package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCount(t *testing.T) {
	const in = `{"Action":"pass","Package":"a","Test":"One"}
{"Action":"output","Package":"a","Test":"Two/sub","Output":"why it failed\n"}
{"Action":"fail","Package":"a","Test":"Two/sub"}
{"Action":"fail","Package":"a","Test":"Two"}
{"Action":"fail","Package":"a"}
{"Action":"skip","Package":"b","Test":"Three"}
{"Action":"fail","Package":"c"}
{"ImportPath":"d","Action":"build-fail"}
not json
`
	var out bytes.Buffer
	passed, failed, skipped := count(strings.NewReader(in), &out)
	assert.Equal(t, []int{1, 3, 1}, []int{passed, failed, skipped})
	assert.Contains(t, out.String(), "why it failed")
	assert.Contains(t, out.String(), "not json")
}
