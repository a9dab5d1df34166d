package sim

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"jobmesh/module/lock"
)

// lockState is one state that a lock may be in.
type lockState struct {
	owner  int    // 0: free
	token  uint64 // 0: the token of this acquisition isn't known
	last   uint64 // the greatest token
	early  int64  // true time from which it may be free, ms
	latest int64  // true time from which it is certainly free, ms
}

// lockStates is the set of states that a lock may be in.
type lockStates []lockState

// fewStates is the number of members up to which a set is searched one by one.
const fewStates = 16

// lockSet is a lockStates while it grows. It has thousands of members if many operations weren't
// answered.
type lockSet struct {
	all  lockStates
	seen map[lockState]struct{} // all of them, if there are more than fewStates
}

func (set *lockSet) add(s lockState) {
	if len(set.all) < fewStates {
		if !slices.Contains(set.all, s) {
			set.all = append(set.all, s)
		}
		return
	}
	if set.seen == nil {
		set.seen = make(map[lockState]struct{}, 4*fewStates)
		for _, s := range set.all {
			set.seen[s] = struct{}{}
		}
	}
	before := len(set.seen)
	if set.seen[s] = struct{}{}; len(set.seen) > before {
		set.all = append(set.all, s)
	}
}

func (set lockStates) equal(o lockStates) bool {
	return len(set) == len(o) && !slices.ContainsFunc(set, func(s lockState) bool { return !slices.Contains(o, s) })
}

// hash doesn't depend on the order.
func (set lockStates) hash() (sum uint64) {
	for _, s := range set {
		h := s.token*0x9e3779b97f4a7c15 ^ s.last ^ uint64(s.early)<<20 ^ uint64(s.latest)<<40 ^ uint64(s.owner)<<8
		h *= 0xbf58476d1ce4e5b9
		sum += h ^ h>>29
	}
	return sum
}

// ownedOp is an operation, with a number for its owner.
type ownedOp struct {
	*LockOp
	owner int
}

// stepLock adds to now the states that a lock may be in after an operation, whose outcome may be
// known or not. Three operations can lead to two states: one that wasn't answered; one with NOQUORUM, because
// a majority may have agreed without being heard; and a release that was refused.
func stepLock(now *lockSet, was lockState, op *ownedOp) {
	call, ret := At(op.Call), At(op.Return)
	if op.Return == math.MaxInt64 {
		ret = call + 60_000
	}
	// A holder that was told of a new lease counts on that one alone, even if it is shorter.
	leased := func(s lockState, token uint64) lockState {
		s.early = max(call, op.Began) + int64(float64(op.Lease)*(1-LockDrift)*(1-LockDrift))
		s.latest = max(s.latest, op.Lasts)
		s.owner, s.token, s.last = op.owner, token, max(s.last, token)
		return s
	}
	freed := func(s lockState) lockState {
		s.owner, s.token = 0, 0
		return s
	}
	mine := was.owner == op.owner
	open := was.owner == 0 || mine || ret >= was.early
	held := mine && (was.token == op.Token || was.token == 0)
	unknown := !op.Known || op.Result == lock.NoQuorum
	switch {
	case op.Kind == "acquire" && unknown:
		now.add(was)
		if open {
			maybe := leased(was, 0)
			if maybe.early = call; mine {
				maybe.early = was.early
			}
			now.add(maybe)
		}
	case op.Kind == "acquire" && op.Result == lock.Granted:
		if open && (op.Got > was.last || mine && op.Got == was.last) {
			now.add(leased(was, op.Got))
		}
	case op.Kind == "acquire":
		if op.Excused || was.owner != 0 && !mine && call <= was.latest {
			now.add(was)
		}
	case op.Kind == "extend" && (unknown || op.Result == lock.Granted):
		if unknown {
			now.add(was)
		}
		if held {
			longer := leased(was, op.Token)
			if unknown {
				longer.early = was.early
			}
			now.add(longer)
		}
	case op.Kind == "release" && (unknown || op.Result == lock.Granted):
		if unknown {
			now.add(was)
		}
		if held {
			now.add(freed(was))
		}
	default: // refused: the client can't certainly hold the lock
		if !(mine && was.token == op.Token && ret < was.early) {
			now.add(was)
		}
		// A release may have freed the lock, and was repeated when another client had the lock.
		if op.Kind == "release" && held {
			now.add(freed(was))
		}
	}
}

// linearizable says whether the operations of a lock's history can be put in an order in which
// each happens at one moment between its call and its answer.
func linearizable(name string, history []LockOp) error {
	var ops []porcupine.Operation
	owners := map[string]int{}
	for i := range history {
		op := &ownedOp{LockOp: &history[i]}
		if op.owner = owners[op.Owner]; op.owner == 0 {
			op.owner = len(owners) + 1
			owners[op.Owner] = op.owner
		}
		o := porcupine.Operation{ClientId: op.Client, Input: op, Output: op, Call: op.Call, Return: op.Return}
		if !op.Known {
			o.Return = math.MaxInt64
		}
		ops = append(ops, o)
	}
	model := porcupine.Model{
		Init: func() any { return lockStates{{}} },
		Step: func(state, op, _ any) (bool, any) {
			var next lockSet
			for _, s := range state.(lockStates) {
				stepLock(&next, s, op.(*ownedOp))
			}
			return len(next.all) > 0, next.all
		},
		Equal: func(a, b any) bool { return a.(lockStates).equal(b.(lockStates)) },
		Hash:  func(state any) uint64 { return state.(lockStates).hash() },
	}
	result, info := porcupine.CheckOperationsVerbose(model, ops, 20*time.Second)
	if result != porcupine.Illegal {
		return nil // or there are too many possibilities: other seeds have fewer
	}
	// The history goes wrong right after its longest part that has a legal order.
	var longest []int
	for _, part := range info.PartialLinearizations() {
		for _, order := range part {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	text, in := "", map[int]bool{}
	for _, i := range longest {
		in[i] = true
	}
	from, to := longest[max(0, len(longest)-12):], 0
	show := func(i int) {
		op := history[i]
		text += fmt.Sprintf("\n  %v %d..%d client %d %s %s token %d lease %d: known %v, %d, got %d, excused %v", in[i], At(op.Call), At(op.Return), op.Client, op.Kind, op.Owner, op.Token, op.Lease, op.Known, op.Result, op.Got, op.Excused)
	}
	for _, i := range from {
		show(i)
	}
	for i := range history {
		if !in[i] && to < 6 {
			show(i)
			to++
		}
	}
	return errors.New("the history isn't linearizable; it ends:" + text)
}

// lockHistories are kinds of trouble for locks. If clocks drift more than is allowed, a lock
// may be given twice. In such histories only tokens are judged.
var lockHistories = map[string]Config{
	"calm": {Nodes: 3, Jobs: 5, Seconds: 60, AckShare: 1, Locks: &Lockers{Clients: 6, Names: 2, MaxLease: 4000, Drift: LockDrift, Judge: linearizable}, Faults: Faults{MinDelay: 1, MaxDelay: 5}},
	"crashes": {Nodes: 3, Jobs: 5, Seconds: 180, AckShare: 1, Locks: &Lockers{Clients: 6, Names: 2, MaxLease: 8000, Drift: LockDrift, Judge: linearizable}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 120, Resets: 120, Skew: 5000,
	}},
	"distrusted": {Nodes: 3, Jobs: 5, Seconds: 240, AckShare: 1, Locks: &Lockers{Clients: 6, Names: 2, MaxLease: 8000, Drift: LockDrift, Distrust: true, Judge: linearizable}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 120, Resets: 60, Skew: 5000,
	}},
	"wiped": {Nodes: 5, Seconds: 240, Wiped: 1000, Locks: &Lockers{Clients: 6, Names: 2, MaxLease: 8000, Drift: LockDrift, Judge: linearizable}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Wipes: 120, Skew: 5000,
	}},
	"partitions": {Nodes: 5, Jobs: 5, Seconds: 240, AckShare: 1, Locks: &Lockers{Clients: 8, Names: 2, MaxLease: 8000, Drift: LockDrift, Judge: linearizable}, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Partitions: 90, CutSecs: 30, Resets: 60,
	}},
	"pauses": {Nodes: 3, Jobs: 5, Seconds: 240, AckShare: 1, Locks: &Lockers{Clients: 8, Names: 3, MaxLease: 6000, Drift: LockDrift, Judge: linearizable}, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Pauses: 120,
	}},
	"slow": {Nodes: 3, Jobs: 5, Seconds: 240, AckShare: 1, Locks: &Lockers{Clients: 6, Names: 2, MaxLease: 8000, Drift: LockDrift, Judge: linearizable}, Faults: Faults{
		MinDelay: 20, MaxDelay: 250, Resets: 30,
	}},
	"lossy": {Nodes: 3, Jobs: 5, Seconds: 180, AckShare: 1, Locks: &Lockers{Clients: 6, Names: 2, MaxLease: 8000, Drift: LockDrift, Judge: linearizable}, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Loss: 0.1,
	}},
	"wild clocks": {Nodes: 3, Seconds: 180, Locks: &Lockers{Clients: 8, Names: 2, MaxLease: 6000, Drift: 0.3}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 60, Skew: 3_600_000,
	}},
	"waits": {Nodes: 3, Seconds: 180, Locks: &Lockers{Clients: 10, Names: 2, MaxLease: 3000, Wait: 30_000, Leave: 0.2, Drift: LockDrift, Judge: linearizable}, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Resets: 60, Pauses: 30, Crashes: 20,
	}},
	"short waits": {Nodes: 3, Seconds: 240, Locks: &Lockers{Clients: 10, Names: 2, MaxLease: 30_000, Wait: 300, Leave: 0.3, Drift: LockDrift, Judge: linearizable}, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Resets: 60, Loss: 0.02,
	}},
	"blackouts": {Nodes: 3, Jobs: 5, Seconds: 240, AckShare: 1, Locks: &Lockers{Clients: 6, Names: 2, MaxLease: 8000, Drift: LockDrift, Judge: linearizable}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Blackouts: 60, Stops: 60, Rewrites: 120, NodesLate: true, Skew: 500,
	}},
	"everysec": {Nodes: 3, Jobs: 5, Seconds: 240, AckShare: 1, Fsync: EverySec, Locks: &Lockers{Clients: 6, Names: 2, MaxLease: 8000, Drift: LockDrift, Judge: linearizable}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 60, Stops: 60, Blackouts: 20, Rewrites: 60, NodesLate: true, Resets: 30,
	}},
	"promotions": {Nodes: 3, Jobs: 5, Seconds: 240, AckShare: 1, Locks: &Lockers{Clients: 6, Names: 2, MaxLease: 8000, Drift: LockDrift, Judge: linearizable}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Promotions: 60, Crashes: 20, Resets: 30,
	}},
	"steps": {Nodes: 3, Jobs: 5, Seconds: 240, AckShare: 1, Locks: &Lockers{Clients: 6, Names: 2, MaxLease: 8000, Drift: LockDrift, Judge: linearizable}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Steps: 120, StepMS: 60_000, Crashes: 60, Blackouts: 20, Rewrites: 60,
	}},
	"joins": {Nodes: 3, Jobs: 5, Seconds: 240, AckShare: 1, Wiped: 1000, Locks: &Lockers{Clients: 8, Names: 2, MaxLease: 8000, Drift: LockDrift, Judge: linearizable}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Joins: 60, MaxNodes: 8, Partitions: 90, CutSecs: 40, Resets: 30, NodesLate: true,
	}},
	// If more than half of the nodes were replaced within a lease, the votes for it would be gone.
	"changes": {Nodes: 5, Jobs: 5, Seconds: 300, AckShare: 1, Wiped: 2, Locks: &Lockers{Clients: 8, Names: 2, MaxLease: 8000, Drift: LockDrift, Judge: linearizable}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Joins: 30, MaxNodes: 7, Replaced: 10, ForgetSecs: 30, Partitions: 60, CutSecs: 40, Crashes: 20,
	}},
	"limits": {Nodes: 3, Jobs: 5, Seconds: 240, AckShare: 1, Locks: &Lockers{Clients: 10, Names: 2, Limit: 3, MaxLease: 8000, Leave: 0.2, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Loss: 0.05, Crashes: 60, Resets: 60, Partitions: 60, CutSecs: 30, Skew: 5000,
	}},
	"limits, pauses": {Nodes: 5, Jobs: 5, Seconds: 240, AckShare: 1, Locks: &Lockers{Clients: 12, Names: 1, Limit: 5, MaxLease: 6000, Wait: 30_000, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Pauses: 90, Blackouts: 20, Stops: 20, NodesLate: true, Skew: 5000, Wipes: 10,
	}, Wiped: 1000},
	"everything": {Nodes: 5, Seconds: 300, Wiped: 1000, Locks: &Lockers{Clients: 8, Names: 3, MaxLease: 60_000, Drift: LockDrift, Judge: linearizable}, Faults: Faults{
		MinDelay: 1, MaxDelay: 100, Loss: 0.01, Crashes: 30, Wipes: 20, Resets: 60, Partitions: 30, CutSecs: 40, Pauses: 20, Skew: 5000,
	}},
}

func TestLockHistories(t *testing.T) { playAll(t, lockHistories, 6) }

// The judge allows a lock to stand against others for as long as votes for it may last: the
// lease doesn't run while a voter is down, and begins anew when it starts.
func TestLeaseOfVotersThatWereDown(t *testing.T) {
	const lease, later = 1000, 60_000
	s := &Sim{locks: &lockWorld{}}
	history := func() []LockOp {
		return []LockOp{
			{Client: 1, Kind: "acquire", Owner: "a", Lease: lease, Call: 0, Return: 10 << 10, Known: true, Result: lock.Granted, Got: 1, Lasts: s.lasts(10, lease)},
			{Client: 2, Kind: "acquire", Owner: "b", Lease: lease, Call: later << 10, Return: (later + 10) << 10, Known: true, Result: lock.Conflict, Lasts: s.lasts(later+10, lease)},
		}
	}
	require.Error(t, linearizable("n", history()), "nobody was down")

	s.locks.outages = []outage{{node: 0, from: 20_000, to: later - 500}}
	require.Error(t, linearizable("n", history()), "it went down when its vote was over")

	s.locks.outages = []outage{{node: 0, from: 500, to: 20_000}}
	require.Error(t, linearizable("n", history()), "it is up again for too long")

	s.locks.outages = []outage{{node: 0, from: 500, to: 30_000}, {node: 1, from: 29_000, to: 50_000}, {node: 0, from: 30_500, to: later - 500}}
	require.NoError(t, linearizable("n", history()))
}
