package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCount(t *testing.T) {
	for name, c := range map[string]struct {
		in                      string
		passed, failed, skipped int
		shows                   []string
	}{
		"one of each": {`{"Action":"pass","Package":"a","Test":"One"}
{"Action":"output","Package":"a","Test":"Two","Output":"why it failed\n"}
{"Action":"fail","Package":"a","Test":"Two"}
{"Action":"skip","Package":"a","Test":"Three"}
{"Action":"fail","Package":"a"}`, 1, 1, 1, []string{"why it failed"}},
		"subtests, not what holds them": {`{"Action":"run","Package":"a","Test":"T"}
{"Action":"pass","Package":"a","Test":"T/x/y"}
{"Action":"pass","Package":"a","Test":"T/x"}
{"Action":"pass","Package":"a","Test":"T/z"}
{"Action":"pass","Package":"a","Test":"T"}
{"Action":"pass","Package":"a"}`, 2, 0, 0, nil},
		"a failed subtest, once": {`{"Action":"fail","Package":"a/b","Test":"T/x/y"}
{"Action":"fail","Package":"a/b","Test":"T/x"}
{"Action":"pass","Package":"a/b","Test":"T/z"}
{"Action":"fail","Package":"a/b","Test":"T"}
{"Action":"fail","Package":"a/b"}`, 1, 1, 0, nil},
		"a test that fails after its subtests": {`{"Action":"pass","Package":"a","Test":"T/x"}
{"Action":"fail","Package":"a","Test":"T"}
{"Action":"fail","Package":"a"}`, 1, 1, 0, nil},
		"a package that doesn't build, once": {`{"ImportPath":"a","Action":"build-output","Output":"undefined: y\n"}
{"ImportPath":"a","Action":"build-fail"}
{"Action":"start","Package":"a"}
{"Action":"fail","Package":"a","FailedBuild":"a"}`, 0, 1, 0, []string{"undefined: y"}},
		"a second run that dies after a first that failed": {`{"Action":"start","Package":"a"}
{"Action":"fail","Package":"a","Test":"T"}
{"Action":"fail","Package":"a"}
{"Action":"start","Package":"a"}
{"Action":"output","Package":"a","Output":"out of memory\n"}
{"Action":"fail","Package":"a"}`, 0, 2, 0, []string{"out of memory"}},
		"a test of a second run": {`{"Action":"start","Package":"a"}
{"Action":"run","Package":"a","Test":"F"}
{"Action":"pass","Package":"a","Test":"F/seed#0"}
{"Action":"pass","Package":"a","Test":"F"}
{"Action":"start","Package":"a"}
{"Action":"run","Package":"a","Test":"F"}
{"Action":"pass","Package":"a","Test":"F"}`, 2, 0, 0, nil},
		"a package that runs out of time": {`{"Action":"start","Package":"a"}
{"Action":"run","Package":"a","Test":"T"}
{"Action":"run","Package":"a","Test":"T/x"}
{"Action":"output","Package":"a","Test":"T/x","Output":"panic: test timed out after 9m0s\n"}
{"Action":"fail","Package":"a"}`, 0, 1, 0, []string{"cut off: a T\n", "cut off: a T/x\npanic: test timed out"}},
		"the reason at the end, without the log before it": {`{"Action":"output","Package":"a","Test":"T","Output":"a server's log\n"}
{"Action":"output","Package":"a","Test":"T","Output":"  Error Trace: t.go:1\n"}
{"Action":"output","Package":"a","Test":"T","Output":"  Error: two isn't three\n"}
{"Action":"fail","Package":"a","Test":"T"}
{"Action":"fail","Package":"a"}`, 0, 1, 0, []string{"fail  a (0.0 s)\nfailed: a T\n  Error Trace: t.go:1\n  Error: two isn't three\n"}},
		"nothing": {"not json", 0, 0, 0, []string{"not json"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			passed, failed, skipped := count(strings.NewReader(c.in), &out)
			assert.Equal(t, []int{c.passed, c.failed, c.skipped}, []int{passed, failed, skipped})
			for _, s := range c.shows {
				assert.Contains(t, out.String(), s)
			}
		})
	}
}
