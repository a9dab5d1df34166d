package commands

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/lua"
	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/uniquequeue"
)

// words are a command's arguments.
type words [][]byte

func (w words) NArgs() int       { return len(w) }
func (w words) Arg(i int) []byte { return w[i] }

// FuzzParse gives every parser the same arguments: none may panic, and what
// one accepts must be within its bounds.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"ADDJOB q b 0 REPLICATE 1 DELAY 5 RETRY 3 TTL 100 MAXLEN 7 PRIORITY -100 ASYNC", "ADDJOB q b 0 AT 1790000100 TTL 5 RETRY 0", "GETJOB NOHANG TIMEOUT 5 COUNT 3 WITHCOUNTERS FROM a b",
		"JSCAN 18446744073709551615 COUNT 5 BUSYLOOP QUEUE q STATE active STATE acked REPLY all", "QSCAN 0 MINLEN 1 MAXLEN 2 IMPORTRATE 3", "QSCAN 5 MESH TIMEOUT 7 COUNT 1000 MINLEN 1", "QSTAT q MESH TIMEOUT 0",
		"UQ.PUSH q item AT 281474976710655", "UQ.POP q COUNT 3", "UQ.BPOP q 1.5e-3", "JOBMESH LUA LOAD REPLACE unique_queue",
		"ADDJOB q b 0 UNIQUE window TTL 5 KEY k SCOPE mesh ONCONFLICT reschedule 3 QUORUM any TTL 9", "ADDJOB q b 0 UNIQUE until-processed DELAY 2 ONCONFLICT debounce 3 TTL 9", "ADDJOB q b 0 UNIQUE before-and-during-processing LOCKTTL 5 RUNTTL 6 ONCONFLICT replace ONBUSY reschedule 7",
		"ADDJOBS q 0 REPLICATE 2 DELAY 5 MAXLEN 7 ASYNC BODIES BODIES a PAIRS", "ADDJOBS q 0 UNIQUE until-processed SCOPE mesh PAIRS k a l b", "ADDJOB q b 0 UNIQUE window TTL 5 LIMIT 256 ONCONFLICT raise", "ADDJOBS q 0 UNIQUE during-processing LIMIT 3 PAIRS k a", "ADDJOBS q 0 AFTER D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1 bodies x",
		"PAUSE q in out none state bcast", "PAUSE q in FOR 2147483647 BCAST", "ADDJOB q b 9223372036854775807 TTL -9223372036854775808",
		"ADDJOB q b 0 DEFERRED BLOCKEDBY D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1", "WIP q COUNT 5 OVERDUE MESH TIMEOUT 7", "GETJOB WORKER ada FROM q", "GETJOB WITHINFO WITHTOKEN COUNT 2 FROM FROM q", "GETJOB LEASE 2147483647 NOHANG FROM q",
		"ADDJOB q b 0 AFTER D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1 D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a0 ONDEAD run RETRY 0", "JSCAN STATE deferred STATE blocked STATE delayed", "JSCAN 7 MESH TIMEOUT 7 COUNT 1000 QUEUE q STATE queued", "QFLUSH q ALL MESH TIMEOUT 7",
		"NACK D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1 x DELAY 5 REASON DEAD", "NACK x DEAD reason y", "NACK x REASON BODY BODY DEAD DELAY 3", "ENQUEUE x y UNSTARTED", "MOVEJOB x y TO q PRIORITY 100", "MOVEJOB x AT 1790000100 PRIORITY 1 TO AT", "WORKING D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1 progress PROGRESS", "WORKING D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1 D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a0 x", "MOVEJOB FROM q COUNT 5 TO p MESH TIMEOUT 7",
		"ADDJOB q b 0 BACKOFF 1 8 JITTER 5 MAXNACKS 3 MAXDELIVERIES 65535 MAXLAPSES 7 DEAD d DEADTTL 0 ONEXPIRE dead", "ADDJOB q b 0 NAME NAME RETRY 5", "ADDJOBS q 0 NAME x BODIES b", "NACK NAME DEAD NAME x BODY b", "WORKING NAME PROGRESS x NAME PROGRESS y",
		"ADDJOB q b 0 DELAY 2.25 TTL 9 KEEP 2147483647", "ADDJOB q b 0 AT 1790000100.001", "NACK x DELAY 0.0005 REASON DELAY", "MOVEJOB x AT 1790000100.5", "ACKJOB x RESULT KEEP KEEP 0", "CANCELJOB x y SOFT REASON SOFT",
		"WIP q DELAYED", "WIP q COUNT 5 DELAYED CURSOR 1790000100123", "WIP q DELAYED CURSOR 1790000100123.18446744073709551615.D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1 MESH COUNT 1000 TIMEOUT 5", "WIP q CURSOR 0 OVERDUE",
		"CRON SET e EVERY 60 OFFSET 59 MISSED all FROM 5 UNTIL 9 JOB q b RETRY 0 QUORUM any", "CRON SET JOB LINE */5~1-4~*~*~sat,7 ZONE Europe/Berlin MISSED skip JOB JOB JOB UNIQUE until-processed KEY k QUORUM any",
		"WAITCOPIES D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1 NAME n 5 COPIES 65535", "PAUSE q all FOR 0.5", "WAITJOB NAME 5 NAME NAME 5 ANY", "MOVEJOB NAME FROM TO q", "ENQUEUE NAME UNSTARTED UNSTARTED", "CANCELJOB NAME", "ADDJOBS q 0 BACKOFF 0 0 DEAD DEAD ONEXPIRE drop BODIES a b",
	} {
		f.Add([]byte(strings.ReplaceAll(strings.ReplaceAll(s, " ", "\xff"), "~", " ")))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		w := words(bytes.Split(line, []byte{0xff}))
		if len(w) >= 4 {
			var a engine.Add
			var all jobs
			if err := parseJobs(w, &a, &defaults{copies: 1}, &all); err == nil {
				require.NotEmpty(t, all.bodies)
				require.LessOrEqual(t, len(all.bodies), engine.MaxBatch)
				require.True(t, len(all.keys) == 0 || len(all.keys) == len(all.bodies) && a.Unique.Strategy != 0 && !a.Unique.Keyed)
				// ADDJOB takes the same options.
				first := len(w) - len(all.bodies) - len(all.keys) - 1
				var one engine.Add
				require.NoError(t, parseAdd(slices.Concat(w[:2], words{nil}, w[2:first]), &one, &defaults{copies: 1}))
				a.Body, one.Body = nil, nil
				if len(all.keys) == 0 {
					require.Equal(t, one, a)
				}
			}
			if err := parseAdd(w, &a, &defaults{copies: 1, now: 1_790_000_000_123}); err == nil {
				require.True(t, a.Replicate >= 1 && a.Replicate <= engine.MaxReplicate)
				require.True(t, a.TTL >= 1 && a.TTL <= math.MaxInt32)
				require.True(t, a.Retry >= 0 && a.Retry <= math.MaxInt32)
				require.True(t, a.Delay >= 0 && a.Delay < a.TTL)
				require.True(t, a.MaxLen >= 0)
				require.False(t, a.Retry == 0 && a.Replicate > 1)
				u := &a.Unique
				require.True(t, u.Strategy <= store.UniqueWindow && u.Conflict <= store.ConflictDebounce && u.Busy <= store.BusyDead)
				require.True(t, len(u.Key) <= store.MaxUniqueKey && (u.Keyed || u.Key == nil))
				for _, v := range []int64{u.LockTTL, u.RunTTL, u.ConflictDelay, u.BusyDelay} {
					require.True(t, v >= 0 && v <= math.MaxInt32)
				}
				require.Equal(t, u.Conflict == store.ConflictReschedule || u.Conflict == store.ConflictDebounce, u.ConflictDelay > 0)
				require.True(t, u.Conflict != store.ConflictDebounce || a.Delay > 0 && u.Strategy != store.UniqueWindow)
				require.Equal(t, u.Busy == store.BusyReschedule, u.BusyDelay > 0)
				if u.Strategy == 0 {
					require.Equal(t, engine.Unique{}, *u)
				}
				if u.Strategy == store.UniqueWindow {
					require.Positive(t, u.LockTTL)
				}
				value := store.AppendUnique(nil, &store.UniqueBy{Strategy: max(u.Strategy, 1), Conflict: u.Conflict, Busy: u.Busy, LockTTL: uint32(u.LockTTL), RunTTL: uint32(u.RunTTL), ConflictDelay: uint32(u.ConflictDelay), BusyDelay: uint32(u.BusyDelay)})
				require.NoError(t, store.CheckExtras(store.AppendExtra(nil, store.TagUnique, value)))
				require.False(t, a.BlockedBy != nil && len(a.After) > 0)
				require.LessOrEqual(t, len(a.After), store.MaxFamilyIDs)
				require.LessOrEqual(t, a.OnDead, engine.OnDeadDead)
				require.False(t, a.OnDead > 0 && len(a.After) == 0)
				require.True(t, a.Name == nil || len(a.Name) > 0 && len(a.Name) <= engine.MaxName && a.Retry > 0 && u.Strategy == 0 && !a.Family())
				require.True(t, a.Priority >= -store.MaxPriority && a.Priority <= store.MaxPriority)
				if p := a.Policy; p != nil {
					require.True(t, p.Base >= 0 && p.Base <= p.Max && p.Max <= engine.MaxSeconds && p.Jitter >= 0 && p.Jitter <= 100 && (p.Base > 0 || p.Max == 0))
					require.True(t, p.MaxNacks >= 0 && p.MaxNacks <= engine.MaxTries && p.MaxDeliveries >= 0 && p.MaxDeliveries <= engine.MaxTries && p.MaxLapses >= 0 && p.MaxLapses <= engine.MaxTries)
					require.True(t, p.DeadTTL >= 0 && p.DeadTTL <= engine.MaxSeconds && len(p.Dead) <= engine.MaxDeadQueue && string(p.Dead) != string(a.Queue))
					require.False(t, a.Retry == 0 && p.Base+p.MaxNacks+p.MaxDeliveries+p.MaxLapses > 0)
				}
			}
		}
		if g, err := parseGet(w); err == nil {
			require.True(t, g.first >= 2 && g.first < len(w))
			require.True(t, g.count >= 1 && g.timeout >= 0 && g.lease >= 0 && g.lease <= engine.MaxSeconds)
			require.True(t, g.worker == nil || len(g.worker) > 0 && len(g.worker) <= engine.MaxWorker)
		}
		var f engine.Failure
		if ids, err := parseNack(w, &f); err == nil {
			require.True(t, ids >= 0 && ids < len(w) && (ids > 0 || len(w) == 1))
			require.True(t, f.Delay >= 0 && f.Delay <= engine.MaxSeconds*1000 && (f.HasDelay || f.Delay == 0) && !(f.HasDelay && f.Dead))
			require.True(t, !f.HasBody || countJobs(w, ids) == 1)
		}
		if ids, progress, err := parseWorking(w, nil); err == nil {
			require.True(t, len(ids) <= maxWorking && len(ids) < len(w) && (len(ids) > 0 || len(w) == 1))
			require.True(t, len(progress) <= engine.MaxProgress && (progress == nil) == (leading(w, isProgress)+1 == len(w)))
		}
		var r engine.Result
		if ids, err := parseAck(w, &r); err == nil {
			require.True(t, ids >= 0 && ids < len(w) && (ids > 0 || len(w) == 1))
			require.True(t, len(r.Data) <= engine.MaxResult && (r.Has || r.Data == nil) && r.Keep >= 0 && r.Keep <= engine.MaxSeconds && (r.HasKeep || r.Keep == 0))
		}
		if ids, o, err := parseCancel(w); err == nil {
			require.True(t, ids >= 0 && ids < len(w) && (ids > 0 || !o.soft && o.reason == nil))
		}
		if ids, wait, _, err := parseWaitJob(w, nil); err == nil {
			require.True(t, len(ids) > 0 && len(ids) <= engine.MaxWaitIDs && wait >= 0)
		}
		if ids, wait, copies, err := parseWaitCopies(w, nil); err == nil {
			require.True(t, len(ids) > 0 && len(ids) <= maxIDs && wait >= 0 && copies >= 0 && copies <= engine.MaxReplicate)
		}
		if len(w) >= 6 {
			if name, s, err := parseCron(w, &defaults{copies: 1, now: 1_790_000_000_123}); err == nil {
				require.True(t, len(name) > 0 && len(name) <= engine.MaxCronName && len(s.Options) <= maxCronOptions)
				require.True(t, s.Every > 0 != (s.Line != "") && s.Offset >= 0 && s.Offset <= max(s.Every-1, 0) && s.Missed <= engine.MissedAll)
				require.True(t, s.From >= 0 && s.Until >= 0 && (s.Until == 0 || s.From <= s.Until))
			}
		}
		if ids, unstarted, err := parseEnqueue(w); err == nil {
			require.True(t, ids >= 0 && ids < len(w) && (!unstarted || ids > 0 && ids == len(w)-2))
		}
		if v, err := parseMove(w); err == nil {
			require.True(t, v.count >= 1 && v.count <= engine.MaxMove && v.timeout > 0)
			require.True(t, v.At >= 0 && v.At <= engine.MaxUnix && (v.HasAt || v.At == 0) && (v.ids > 0 || !v.HasAt))
			require.True(t, (v.ids > 0) != (v.from != nil) && v.ids < len(w) && (v.from != nil || !v.mesh))
		}
		if o, _, err := parseFlush(w); err == nil {
			require.True(t, o.timeout > 0 && (o.mesh || !o.given))
		}
		for _, jobs := range []bool{false, true} {
			if s, err := parseScan(w, jobs); err == nil {
				require.False(t, s.mesh && (s.all || s.busy || s.count < 1 || s.count > engine.MaxMeshPage || s.timeout <= 0))
			}
		}
		if len(w) >= 2 {
			if o, err := parseMesh(w); err == nil {
				require.True(t, o.timeout > 0 && (o.mesh || !o.given))
			}
			if p, err := parseWIP(w); err == nil {
				require.True(t, p.count >= 1 && p.count <= engine.MaxWIP && p.timeout > 0 && (p.count <= engine.MaxMeshWIP || !p.mesh))
				require.False(t, p.overdue && p.delayed || p.from != nil && !p.delayed)
				require.True(t, p.behind.At >= 0 && (p.from != nil || p.behind == store.DelayedPlace{}))
				again := wip{from: []byte(fmt.Sprintf("%d.%d.%s", p.behind.At, p.behind.CTime, p.behind.ID.String()))} // as putDelayedCursor answers it
				require.True(t, again.readCursor())
				require.Equal(t, p.behind, again.behind)
			}
		}
		if len(w) >= 3 {
			if library, _, err := parseLuaLoad(w); err == nil {
				require.Contains(t, lua.Libraries(), library)
			}
		}
		if len(w) >= 3 {
			if p, err := parsePause(w); err == nil {
				require.LessOrEqual(t, p.mask, uint8(3))
				require.False(t, p.span < 0 || p.span > 0 && p.mask == 0)
			}
		}
		if len(w) >= 3 {
			if start, given, err := parseStart(w, math.MaxInt64); err == nil {
				require.True(t, start >= 0 && start <= uniquequeue.MaxStart && given == (len(w) == 5))
			}
		}
		if count, one, err := parseCount(w); err == nil {
			require.True(t, count >= 1 && count <= 1<<28 && one == (len(w) == 2))
		}
		for _, b := range w {
			if ms, err := parseSeconds(b); err == nil {
				require.True(t, ms >= 0 && ms <= maxTimeout)
				zero, _ := strconv.ParseFloat(string(b), 64)
				require.Equal(t, zero == 0, ms == 0, "for ever only where that was asked for")
			}
			v, ok := integer(b)
			want, err := strconv.ParseInt(string(b), 10, 64)
			require.Equal(t, err == nil, ok, "%q", b)
			if ok {
				require.Equal(t, want, v)
			}
			c, ok := cursor(b)
			wantU, err := strconv.ParseUint(string(b), 10, 64)
			require.Equal(t, err == nil, ok, "%q", b)
			if ok {
				require.Equal(t, wantU, c)
			}
		}
	})
}

func TestIntegerBounds(t *testing.T) {
	for text, want := range map[string]int64{"9223372036854775807": math.MaxInt64, "-9223372036854775808": math.MinInt64, "+007": 7, "-0": 0} {
		v, ok := integer([]byte(text))
		assert.True(t, ok, text)
		assert.Equal(t, want, v)
	}
	for _, bad := range []string{"", "+", "-", " 1", "1 ", "1\x00", "9223372036854775808", "-9223372036854775809", "99999999999999999999999", "18446744073709551617", "0x1"} {
		_, ok := integer([]byte(bad))
		assert.False(t, ok, bad)
	}
}

// A recurring job takes each DELAY that ADDJOB does, also a part of a second. AT is refused, also one that is over.
func TestCronDelay(t *testing.T) {
	for options, refused := range map[string]error{"DELAY 0.5": nil, "DELAY 5": nil, "DELAY 1.25 RETRY 0": nil, "KEY AT UNIQUE window TTL 5": nil, "AT 5": errCronOption, "AT 1790000100": errCronOption} {
		w := words{}
		for _, word := range strings.Fields("CRON SET c EVERY 5 JOB q b " + options) {
			w = append(w, []byte(word))
		}
		_, s, err := parseCron(w, &defaults{copies: 1, now: 1_790_000_000_000})
		if assert.Equal(t, refused, err, options); err == nil {
			var a engine.Add
			require.NoError(t, parseAdd(wordsOf(&s), &a, &defaults{copies: 1, now: 1_790_000_000_000}), options)
			if strings.HasPrefix(options, "DELAY 0.5") {
				assert.EqualValues(t, 1_790_000_000_500, a.At)
			}
		}
	}
}
