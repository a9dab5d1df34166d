package compat

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// beforeAll is the last commit whose module had none of the options that say what becomes of a job that fails, repeats, or must not run too often.
const beforeAll = "d09d55e0b5ef66a44e4af1b180d4ff7d364d01e0"

// ofTheClock are fields of SHOW and QSTAT that differ between any two servers.
var ofTheClock = []string{"ctime", "token", "ttl", "next-requeue-within", "next-awake-within", "age", "idle", "nodes-delivered", "nodes-confirmed"}

// side is one of two servers that hear the same.
type side struct {
	c       *harness.Conn
	numbers map[string]int // of jobs, by their IDs
	ids     []string
}

// ask sends a command that names jobs by their numbers, and returns the reply, in which jobs have numbers, too. The fields of the replies are apart.
func (s *side) ask(t *testing.T, command []any) (reply string, fields []string) {
	args := slices.Clone(command)
	for i, a := range args {
		if n, ok := a.(job); ok {
			args[i] = s.ids[n]
		}
	}
	v := s.c.Do(args...)
	if strings.HasPrefix(args[0].(string), "ADDJOB") && v.Kind == '+' {
		if _, known := s.numbers[v.Str]; !known {
			s.numbers[v.Str] = len(s.ids)
			s.ids = append(s.ids, v.Str)
		}
	}
	named := func(text string) string {
		if at := strings.Index(text, "D-"); at >= 0 && len(text) >= at+40 {
			if n, known := s.numbers[text[at:at+40]]; known {
				return text[:at] + fmt.Sprint("job ", n) + text[at+40:]
			}
		}
		return text
	}
	var tell func(v harness.Value) string
	tell = func(v harness.Value) string {
		if v.Kind != '*' {
			return named(v.String())
		}
		parts := []string{}
		for _, e := range v.Elems {
			parts = append(parts, tell(e))
		}
		return fmt.Sprint(v.Null, parts)
	}
	if name := args[0]; (name == "SHOW" || name == "QSTAT") && v.Kind == '*' && !v.Null {
		for i := 0; i+1 < len(v.Elems); i += 2 {
			value := "…"
			if !slices.Contains(ofTheClock, v.Elems[i].Str) {
				value = tell(v.Elems[i+1])
			}
			fields = append(fields, v.Elems[i].Str+" "+value)
		}
		return "", fields
	}
	if args[0] == "LOCK.ACQUIRE" && v.Kind == ':' {
		return "a token", nil
	}
	return strings.ReplaceAll(tell(v), "LIMIT, ", ""), nil // an error tells of an option more
}

type job int

var strategies = [...]string{"until-processed", "before-processing", "during-processing", "before-and-during-processing"}

// I1, as far as a test can tell: to a client that uses no new option the module answers as before. Random commands of the former release get the
// same replies from both, but for further fields of SHOW and QSTAT, a delay that ENQUEUE or NACK has ended, and -CANCELLED where a worker heard -NOJOB. (The former tests stand beside it.)
func TestLongLifeI1(t *testing.T) {
	former := harness.BuildFormer(t, beforeAll)
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			was := &side{c: harness.Start(t, harness.WithModule(former)).Dial(), numbers: map[string]int{}}
			is := &side{c: harness.Start(t).Dial(), numbers: map[string]int{}}
			asked := map[string]int{}
			for step := range 4000 {
				command := oldCommand(r, len(was.ids))
				before, fieldsBefore := was.ask(t, command)
				now, fields := is.ask(t, command)
				require.Len(t, is.ids, len(was.ids), "%d: %v", step, command)
				asked[fmt.Sprint(command[0], " ", before == "" || before[0] != '-')]++
				if command[0] == "WORKING" && strings.HasPrefix(before, "-\"NOJOB") && strings.HasPrefix(now, "-\"CANCELLED") {
					continue
				}
				require.Equal(t, before, now, "%d: %v", step, command)
				for i, f := range fieldsBefore {
					require.Less(t, i, len(fields), "%v lacks %s", command, f)
					if fields[i] == "delay :0" && strings.HasPrefix(f, "delay :") {
						continue // it was queued early, which has ended its delay
					}
					require.Equal(t, f, fields[i], "%d: %v", step, command)
				}
			}
			assert.Greater(t, len(was.ids), 500)
			t.Log(asked)
		})
	}
}

// oldCommand makes a command of the former release, of which some are wrong. No timer ends while the test runs.
func oldCommand(r *rand.Rand, jobs int) []any {
	queue := func() any { return fmt.Sprint("q", r.IntN(4)) }
	some := func() any {
		if jobs == 0 || r.IntN(50) == 0 {
			return []string{"D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1", "D-short"}[r.IntN(2)]
		}
		return job(max(0, jobs-1-r.IntN(30)))
	}
	list := func(name string) []any {
		command := []any{name}
		for range 1 + r.IntN(3) {
			command = append(command, some())
		}
		return command
	}
	switch k := r.IntN(40); {
	case k < 12:
		command := []any{"ADDJOB", queue(), r.IntN(8), 0}
		for _, option := range [][]any{
			{"RETRY", 600}, {"RETRY", 600}, {"RETRY", 0}, {"DELAY", 500 + r.IntN(500)}, {"TTL", 10_000}, {"MAXLEN", 3 + r.IntN(9)}, {"ASYNC"}, {"REPLICATE", 1}, {"AFTER", some()}, {"DEFERRED"},
			{"UNIQUE", strategies[r.IntN(4)], "KEY", r.IntN(6)}, {"UNIQUE", strategies[r.IntN(2)], "ONCONFLICT", []string{"raise", "drop", "return", "replace"}[r.IntN(4)]},
		} {
			if r.IntN(9) == 0 {
				command = append(command, option...)
			}
		}
		if r.IntN(20) == 0 {
			command = append(command, [][]any{{"PRIO"}, {"RETRY", "x"}, {"TTL", 0}, {"REPLICATE", 2}, {"ONCONFLICT", "drop"}, {"BLOCKEDBY", some()}, {"ONDEAD", "run"}}[r.IntN(7)]...)
		}
		return command
	case k < 18:
		return []any{"GETJOB", "NOHANG", "COUNT", 1 + r.IntN(3), "WITHCOUNTERS", "FROM", queue(), queue()}
	case k < 22:
		return list([]string{"ACKJOB", "ACKJOB", "ACKJOB", "FASTACK"}[r.IntN(4)])
	case k < 25:
		return list([]string{"NACK", "ENQUEUE", "DEQUEUE"}[r.IntN(3)])
	case k == 25:
		return list([]string{"DELJOB", "CANCELJOB"}[r.IntN(2)])
	case k < 28:
		return []any{"WORKING", some()}
	case k < 32:
		return []any{"SHOW", some()}
	case k == 32:
		return []any{"QSTAT", queue()}
	case k == 33:
		return []any{"QLEN", queue()}
	case k == 34:
		return []any{"QPEEK", queue(), r.IntN(20) - 10}
	case k == 35:
		return []any{"PAUSE", queue(), []string{"in", "out", "all", "none", "none", "none", "none", "state"}[r.IntN(8)]}
	case k == 36:
		return []any{"RELEASEJOB", some()}
	case k == 37:
		return []any{"QCONFIG", "SET", queue(), "RETRY", []any{500, "x"}[r.IntN(2)]}
	case k == 38:
		return []any{[]string{"QCONFIG", "LOCK.ACQUIRE", "LOCK.SHOW", "DEL"}[r.IntN(4)], "q9"}
	default:
		return []any{"LOCK.ACQUIRE", fmt.Sprint("n", r.IntN(3)), fmt.Sprint("o", r.IntN(3)), 600_000}
	}
}
