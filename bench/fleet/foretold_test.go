package fleet

import (
	"math"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/test/race"
)

// dummy is the measured profile of an 8B model without compiled kernels on one H200: each prompt
// takes as long as its kernel launches.
var dummy = profile.Profile{
	FrontendOverhead: 0.0058, Prefill: profile.Prefill{Base: 0.05346, PerToken: 5.6e-07},
	Decode: profile.Decode{Base: 0.004859, PerSequence: 1.041e-05, PerKVToken: 3.189e-08},
	Limits: profile.Limits{MaxSequences: 256, MaxBatchedTokens: 8192, KVBlocks: 7168, BlockSize: 16},
}

// judging is an extproc that compares each time to first token with its prediction.
type judging struct {
	*headgate
	trusted         map[*Request]bool // requests that were routed by predictions
	predicted, took []float64         // times to first token of those requests, in seconds
	off             []float64         // logarithms of took/predicted
}

func (j *judging) Pick(now float64, r *Request) int {
	to := j.headgate.Pick(now, r)
	j.trusted[r] = j.view.Snapshot.Pools[objects.EndpointsPool.String()].Predictable
	return to
}

func (j *judging) FirstToken(now float64, r *Request, endpoint int) {
	if is := j.inFlight[r]; j.trusted[r] {
		j.predicted, j.took = append(j.predicted, is.FirstToken()), append(j.took, now-is.at)
		j.off = append(j.off, math.Log((now-is.at)/is.FirstToken()))
	}
	delete(j.trusted, r)
	j.headgate.FirstToken(now, r, endpoint)
}

// Without a configured profile, predictions are right from the first decision that uses them.
func TestTrustedPredictionsAreRight(t *testing.T) {
	race.Skip(t)
	for _, rate := range []float64{0.5, 2, 5, 10} {
		f := four()
		f.Endpoints, f.Profile, f.Assumed = 1, dummy, func(profile.Profile) *profile.Profile { return nil }
		j := &judging{trusted: make(map[*Request]bool)}
		outcome(t, f, 1, Plain(Conversation()).Requests(1, rate, int(200+100*rate)), func(f Fleet, seed uint64) (Picker, error) {
			made, err := Headgate(pick.Latency)(f, seed)
			if err != nil {
				return nil, err
			}
			j.headgate = made.(*headgate)
			return j, nil
		})
		if len(j.off) < 100 {
			t.Errorf("%g a second: predictions decided %d requests", rate, len(j.off))
			continue
		}
		for n, most := range map[int]float64{20: 0.2, 100: 0.15} {
			off := quantile(j.off[:n], 0.5)
			if math.Abs(off) > most {
				t.Errorf("%g a second: the first %d first tokens took %.2f times as long as predicted in the median", rate, n,
					math.Exp(off))
			}
		}
	}
}

// judgingGated is like judging, with a gate.
type judgingGated struct {
	*gated
	predicted, took float64 // sums of times from the dispatch to the first token, in seconds
}

func (j *judgingGated) FirstToken(now float64, r *Request, endpoint int) {
	is := j.inFlight[r]
	j.predicted, j.took = j.predicted+is.FirstToken(), j.took+now-is.at
	j.gated.FirstToken(now, r, endpoint)
}

// While a batch fills up, the gate keeps the queue of prompts short, and nearly each prompt needs a
// step of its own. Predictions contain the time of these steps. Otherwise more prompts would be
// dispatched than the engine can compute, and its queue would grow.
func TestPromptsInStepsOfTheirOwnAreForetold(t *testing.T) {
	race.Skip(t)
	f := four()
	f.BacklogSync = 0.02
	gate := pick.Gate{On: true, Queue: pick.DefaultGateQueue, PerToken: pick.DefaultGatePerToken}
	var j *judgingGated
	outcome(t, f, 1, Plain(Conversation()).Requests(1, 30, 600), func(f Fleet, seed uint64) (Picker, error) {
		made, err := Fair(gate)(f, seed)
		j = &judgingGated{gated: made.(*gated)}
		return j, err
	})
	if ratio := j.took / j.predicted; ratio < 0.75 || ratio > 1.1 {
		t.Errorf("first tokens take %.2f times as long as predicted", ratio)
	}
}
