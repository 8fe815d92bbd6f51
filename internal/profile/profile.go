// Package profile is the latency model of an engine on one kind of hardware. It predicts how long
// the engine takes to prefill a prompt, to run a decode step, and to load an adapter. It also
// contains the engine's limits.
//
// All of Headgate's decisions use it: package pick predicts the time to first token, package place
// weighs the cost of a load, and headgate plan simulates a fleet. The simulated engine uses it,
// too, so that plans and tests describe the same machine.
//
// A profile is written in YAML, which [Parse] reads. All times are in seconds. Profiles are
// immutable after their creation, and safe for concurrent use.
package profile

import (
	"errors"
	"fmt"
	"math"

	"sigs.k8s.io/yaml"
)

// Profile is the latency model of one engine on one kind of hardware.
type Profile struct {
	// Name describes the model and the hardware in messages.
	Name string `json:"name"`
	// Source says where the figures come from, such as a measurement, a paper, or a fit with its
	// error.
	Source string `json:"source,omitempty"`

	// FrontendOverhead is the time in seconds before a request is in the engine's queue. The API
	// server needs it to read and tokenize the request.
	FrontendOverhead float64 `json:"frontendOverhead,omitempty"`
	Prefill          Prefill `json:"prefill"`
	Decode           Decode  `json:"decode"`
	// LaunchOverhead is the time in seconds to launch the kernels of a step with prompts; 0 if
	// none. The accelerator computes launched kernels meanwhile. So such a step takes at least
	// LaunchOverhead, and decoding sequences in it are free up to that time.
	LaunchOverhead float64 `json:"launchOverhead,omitempty"`
	// AsyncScheduling is true if the engine schedules a step while it computes the previous one, as
	// vLLM does by default on GPUs (async_scheduling). The previous step then hides LaunchOverhead,
	// and a new request waits for one more step.
	AsyncScheduling bool `json:"asyncScheduling,omitempty"`
	// MixedBatchOverhead is the extra time in seconds of a step that has both prompts and decoding
	// sequences, beyond the sum of its terms; 0 if none.
	MixedBatchOverhead float64 `json:"mixedBatchOverhead,omitempty"`
	// AdapterLoad is the time to load an adapter from storage into host memory.
	AdapterLoad Spread `json:"adapterLoad"`
	// AdapterActivation is the time to load an adapter from host memory into a GPU slot.
	AdapterActivation Spread `json:"adapterActivation"`

	Limits Limits `json:"limits"`
}

// Prefill describes the time to compute n tokens of a prompt, after c tokens that are already in
// the KV cache:
//
//	max(Floor, Base + PerToken*n + PerTokenSquared*((c+n)² - c²))
//
// Floor is the time of short prompts, which does not depend on their length. The squared term is
// attention: each token attends to all earlier tokens, so later parts of a long prompt cost more.
type Prefill struct {
	Floor           float64 `json:"floor,omitempty"`           // seconds; 0 if there is no floor
	Base            float64 `json:"base"`                      // seconds per step
	PerToken        float64 `json:"perToken"`                  // seconds per uncached token
	PerTokenSquared float64 `json:"perTokenSquared,omitempty"` // factor of the squared term in seconds; 0 if there is none
	// MaxMeasuredTokens is the length of the longest prompt that was measured; 0 if unknown. Times
	// of longer prompts are extrapolated.
	MaxMeasuredTokens int `json:"maxMeasuredTokens,omitempty"`
}

// Beyond reports whether a prompt with this number of tokens is longer than any measured prompt.
func (p Prefill) Beyond(tokens int) bool {
	return p.MaxMeasuredTokens > 0 && tokens > p.MaxMeasuredTokens
}

// Decode describes the time of one decode step: Base + PerSequence * (number of sequences in the
// batch) + PerKVToken * (number of their tokens in the KV cache). The three terms are for reading
// the weights, the work for each sequence, and reading the KV cache.
type Decode struct {
	Base        float64 `json:"base"`        // seconds per step
	PerSequence float64 `json:"perSequence"` // seconds per sequence in the batch
	PerKVToken  float64 `json:"perKVToken"`  // seconds per token of the batch in the KV cache
	// AdapterSlowdown multiplies the time of a step in which an adapter runs. It is at least 1; 0
	// means 1.
	AdapterSlowdown float64 `json:"adapterSlowdown,omitempty"`
}

// Spread is a random time, with its mean and standard deviation. The zero Spread takes no time.
type Spread struct {
	Mean   float64 `json:"mean"`             // seconds
	StdDev float64 `json:"stddev,omitempty"` // seconds
}

// Limits are the limits of what one engine can run or store at a time.
type Limits struct {
	MaxSequences     int `json:"maxSequences"`     // maximum number of requests in the batch; vLLM's max_num_seqs
	MaxBatchedTokens int `json:"maxBatchedTokens"` // maximum number of tokens in a step; vLLM's max_num_batched_tokens
	KVBlocks         int `json:"kvBlocks"`         // number of KV cache blocks; vLLM's num_gpu_blocks
	BlockSize        int `json:"blockSize"`        // number of tokens in a KV cache block
	GPUAdapters      int `json:"gpuAdapters"`      // number of adapter slots on the GPU, 0 if none; vLLM's max_loras
	HostAdapters     int `json:"hostAdapters"`     // maximum number of adapters in host memory and on the GPU; vLLM's max_cpu_loras
}

// Parse reads a profile from YAML. It returns an error that names the field if a field is unknown,
// a time is negative, or a limit is impossible.
func Parse(text []byte) (Profile, error) {
	var p Profile
	if err := yaml.UnmarshalStrict(text, &p); err != nil {
		return Profile{}, fmt.Errorf("profile: %w", err)
	}
	if err := p.Validate(); err != nil {
		return Profile{}, fmt.Errorf("profile %q: %w", p.Name, err)
	}
	return p, nil
}

// Fault is an invalid field of a profile, such as prefill.base.
type Fault struct {
	Field string
	Value any
	Words string // what the field must contain
}

// Error has the form "field is value: words".
func (f Fault) Error() string { return fmt.Sprintf("%s is %v: %s", f.Field, f.Value, f.Words) }

// Validate returns an error with all faults of the profile; nil if it is valid.
func (p Profile) Validate() error {
	var faults []error
	for _, f := range p.Faults() {
		faults = append(faults, f)
	}
	return errors.Join(faults...)
}

// Faults returns all invalid fields of the profile.
func (p Profile) Faults() (faults []Fault) {
	for _, t := range []struct {
		field   string
		seconds float64
	}{
		{"frontendOverhead", p.FrontendOverhead},
		{"launchOverhead", p.LaunchOverhead},
		{"mixedBatchOverhead", p.MixedBatchOverhead},
		{"prefill.floor", p.Prefill.Floor},
		{"prefill.base", p.Prefill.Base},
		{"prefill.perToken", p.Prefill.PerToken},
		{"prefill.perTokenSquared", p.Prefill.PerTokenSquared},
		{"decode.base", p.Decode.Base},
		{"decode.perSequence", p.Decode.PerSequence},
		{"decode.perKVToken", p.Decode.PerKVToken},
		{"adapterLoad.mean", p.AdapterLoad.Mean},
		{"adapterLoad.stddev", p.AdapterLoad.StdDev},
		{"adapterActivation.mean", p.AdapterActivation.Mean},
		{"adapterActivation.stddev", p.AdapterActivation.StdDev},
	} {
		if t.seconds < 0 || math.IsNaN(t.seconds) || math.IsInf(t.seconds, 0) {
			faults = append(faults, Fault{t.field, t.seconds, "a time in seconds is finite and not negative"})
		}
	}
	if f := p.Decode.AdapterSlowdown; f != 0 && (!(f >= 1) || math.IsInf(f, 0)) {
		faults = append(faults, Fault{"decode.adapterSlowdown", f, "it is how many times as long a step takes with adapters, at least 1"})
	}
	for _, l := range []struct {
		field      string
		value, min int
	}{
		{"limits.maxSequences", p.Limits.MaxSequences, 1},
		{"limits.maxBatchedTokens", p.Limits.MaxBatchedTokens, 1},
		{"limits.kvBlocks", p.Limits.KVBlocks, 1},
		{"limits.blockSize", p.Limits.BlockSize, 1},
		{"limits.gpuAdapters", p.Limits.GPUAdapters, 0},
		{"limits.hostAdapters", p.Limits.HostAdapters, p.Limits.GPUAdapters},
		{"prefill.maxMeasuredTokens", p.Prefill.MaxMeasuredTokens, 0},
	} {
		if l.value < l.min {
			faults = append(faults, Fault{l.field, l.value, fmt.Sprintf("it must be at least %d", l.min)})
		}
	}
	return faults
}

// Times returns the profile of an engine that takes factor times as long for everything.
func (p Profile) Times(factor float64) Profile {
	for _, seconds := range []*float64{
		&p.FrontendOverhead, &p.LaunchOverhead, &p.MixedBatchOverhead, &p.Prefill.Floor, &p.Prefill.Base, &p.Prefill.PerToken,
		&p.Prefill.PerTokenSquared,
		&p.Decode.Base, &p.Decode.PerSequence, &p.Decode.PerKVToken,
		&p.AdapterLoad.Mean, &p.AdapterLoad.StdDev, &p.AdapterActivation.Mean, &p.AdapterActivation.StdDev,
	} {
		*seconds *= factor
	}
	return p
}

// Work is the work of one engine step. The zero Work is an empty step.
type Work struct {
	// PromptTokens is the number of prompt tokens that the step computes. Squares is the sum of
	// (c+n)² - c² over all parts of prompts in the step; a part has n tokens, after c tokens that
	// are already in the KV cache.
	PromptTokens int
	Squares      float64
	// Sequences is the number of decoding sequences, which get one token each. KVTokens is the
	// total number of their tokens in the KV cache.
	Sequences, KVTokens int
	// Adapters reports whether an adapter runs in the step.
	Adapters bool
}

// AddPrompt adds a part of a prompt to the step: tokens is its length, and context is the number of
// earlier tokens, which are already in the KV cache.
func (w *Work) AddPrompt(context, tokens int) {
	w.PromptTokens += tokens
	w.Squares += float64(tokens) * float64(2*context+tokens)
}

// PrefillTime predicts the time in seconds of a step that computes only a part of a prompt: tokens
// is its length, and context is the number of earlier tokens, which are already in the KV cache. It
// returns 0 for no tokens. It does not allocate.
func (p *Profile) PrefillTime(context, tokens int) float64 {
	var w Work
	w.AddPrompt(context, tokens)
	return p.StepTime(w)
}

// StepTime predicts the time of one engine step in seconds. A step reads the weights once, so a
// mixed step has only the larger of the two bases. Below the floor of prefill, prompt tokens take
// no extra time, but sequences do. An empty step takes no time. It does not allocate.
func (p *Profile) StepTime(w Work) float64 {
	return max(p.LaunchTime(w), p.ComputeTime(w))
}

// LaunchTime predicts the time in seconds in which the engine launches the kernels of a step and
// can do nothing else.
func (p *Profile) LaunchTime(w Work) float64 {
	if w.PromptTokens == 0 {
		return 0
	}
	return p.LaunchOverhead
}

// ComputeTime predicts the time in seconds in which the accelerator computes a step. If the profile
// has a launch overhead, the floor of prefill is launch time and not part of ComputeTime.
func (p *Profile) ComputeTime(w Work) float64 {
	var base, floor float64
	if w.PromptTokens > 0 {
		base, floor = p.Prefill.Base, p.Prefill.Floor
		if p.LaunchOverhead > 0 {
			floor = 0
		}
	}
	slower := 1.0
	if w.Sequences > 0 {
		if w.Adapters && p.Decode.AdapterSlowdown > 1 {
			slower = p.Decode.AdapterSlowdown
		}
		base = max(base, slower*p.Decode.Base)
		if w.PromptTokens > 0 {
			base += p.MixedBatchOverhead
		}
	}
	prompts := max(floor, base+p.Prefill.PerToken*float64(w.PromptTokens)+p.Prefill.PerTokenSquared*w.Squares)
	return prompts + slower*p.Decode.PerSequence*float64(w.Sequences) + slower*p.Decode.PerKVToken*float64(w.KVTokens)
}
