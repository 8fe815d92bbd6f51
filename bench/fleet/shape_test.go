package fleet

import (
	"fmt"
	"math"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/test/race"
)

// closedLoop simulates one endpoint with a number of clients that each send one request at a time.
// It returns the picker, which has recorded its predictions.
func closedLoop(t *testing.T, of profile.Profile, clients int, assumed func(profile.Profile) *profile.Profile) *judging {
	t.Helper()
	f := four()
	f.Endpoints, f.Profile, f.Clients, f.Assumed = 1, of, clients, assumed
	j := &judging{trusted: make(map[*Request]bool)}
	outcome(t, f, 1, Plain(Conversation()).Requests(1, 1, 400+80*clients), func(f Fleet, seed uint64) (Picker, error) {
		made, err := Headgate(pick.Latency)(f, seed)
		if err != nil {
			return nil, err
		}
		j.headgate = made.(*headgate)
		return j, nil
	})
	return j
}

// An engine may have a fixed cost for each step with a prompt. Extproc learns this cost from any
// initial profile, and predictions are right from the first decision that uses them, for any number
// of clients. It also learns that an engine has no such cost.
func TestShapeOfPrefillIsLearned(t *testing.T) {
	race.Skip(t)
	nothing := func(profile.Profile) *profile.Profile { return nil }
	other := func(p profile.Profile) *profile.Profile {
		p.Prefill.Base, p.Prefill.PerToken, p.Decode.Base = 0, 50*p.Prefill.PerToken, 3*p.Decode.Base
		return &p
	}
	eight, err := profile.Parse(small)
	if err != nil {
		t.Fatal(err)
	}
	eight.Limits.MaxBatchedTokens = 8192 // assumed value if the limit is unknown
	for _, c := range []struct {
		name    string
		of      profile.Profile
		assumed func(profile.Profile) *profile.Profile
		clients []int
		bias    float64 // largest permitted bias
	}{
		{"a long step with each prompt, nothing given", dummy, nothing, []int{1, 8, 32}, 0.1},
		{"a long step with each prompt, another shape given", dummy, other, []int{8}, 0.15},
		{"8B, nothing given", eight, nothing, []int{1, 8, 32}, 0.15},
		{"70B, nothing given", llm.DefaultProfile(), nothing, []int{1, 8, 32}, 0.15},
	} {
		for _, clients := range c.clients {
			t.Run(fmt.Sprintf("%s, %d at once", c.name, clients), func(t *testing.T) {
				j := closedLoop(t, c.of, clients, c.assumed)
				is, want := j.state.Times.Known()[0].Profile, c.of
				if len(j.off) < 100 {
					t.Fatalf("predictions decided %d requests: %+v", len(j.off), is)
				}
				var predicted, took float64
				errors := make([]float64, 100)
				for i := range errors {
					predicted, took = predicted+j.predicted[i], took+j.took[i]
					errors[i] = math.Abs(j.predicted[i]/j.took[i] - 1)
				}
				off, bias := quantile(errors, 0.5), predicted/took-1
				t.Logf("the first 100 are off by %.0f %% in the median, the bias is %+.0f %%; frontend overhead %.4f, %+v %+v", 100*off, 100*bias,
					is.FrontendOverhead, is.Prefill, is.Decode)
				if off > 0.25 || math.Abs(bias) > c.bias {
					t.Errorf("the first 100 are off by %.0f %% in the median, the bias is %+.0f %%", 100*off, 100*bias)
				}
				for _, tokens := range []int{400, 1000, 3000} {
					var work profile.Work
					work.AddPrompt(0, tokens)
					work.Sequences, work.KVTokens = clients, 1200*clients
					if ratio := is.StepTime(work) / want.StepTime(work); ratio < 0.8 || ratio > 1.2 {
						t.Errorf("a step with a prompt of %d tokens is taken to be %.2f times as long as it is", tokens, ratio)
					}
				}
				if math.Abs(is.FrontendOverhead-want.FrontendOverhead) > 0.004+0.1*is.PrefillTime(0, 1000) {
					t.Errorf("the learned frontend overhead is %g s, want %g s", is.FrontendOverhead, want.FrontendOverhead)
				}
			})
		}
	}
}
