// Package profile is the latency model: how long one engine on one kind of hardware takes to
// prefill a prompt, to make one decode step and to load a model, and how much fits into it.
//
// All of Headgate's decisions use it: pick predicts the time to first token, place weighs a load,
// provision simulates a fleet. The simulated engine runs on it, too, so that plans and tests
// describe the same machine.
//
// A profile is YAML, parsed by [Parse]. All times are in seconds. Values are immutable once made
// and safe for concurrent use.
package profile

import (
	"errors"
	"fmt"
	"math"

	"sigs.k8s.io/yaml"
)

// Profile is the latency of one engine on one kind of hardware.
type Profile struct {
	// Name is the model and the hardware, for people.
	Name string `json:"name"`
	// Source is where the figures come from: a measurement, a paper, a fit and its error.
	Source string `json:"source,omitempty"`

	// FrontendOverhead is the time before a request is in its engine's queue, in seconds: an API
	// server reads it and makes tokens of it, of many at once.
	FrontendOverhead float64 `json:"frontendOverhead,omitempty"`
	Prefill          Prefill `json:"prefill"`
	Decode           Decode  `json:"decode"`
	// LaunchOverhead is the time in seconds to start the kernels of a step with prompts, one by
	// one. The accelerator computes started kernels meanwhile. So such a step takes at least
	// LaunchOverhead, and decoding sequences cost nothing extra below that. 0 is none.
	LaunchOverhead float64 `json:"launchOverhead,omitempty"`
	// AsyncScheduling reports whether the engine schedules a step while the one before it is
	// computed, as vLLM does by default on GPUs (async_scheduling). LaunchOverhead is hidden behind
	// that step then, and a request that arrives waits for one step more.
	AsyncScheduling bool `json:"asyncScheduling,omitempty"`
	// MixedBatchOverhead is by how much longer a step takes that has both prompts and sequences
	// than their terms say, in seconds; 0 is none.
	MixedBatchOverhead float64 `json:"mixedBatchOverhead,omitempty"`
	// AdapterLoad is the time to bring a model from storage into host memory.
	AdapterLoad Spread `json:"adapterLoad"`
	// AdapterActivation is the time to bring an adapter from host memory into a GPU slot.
	AdapterActivation Spread `json:"adapterActivation"`

	Limits Limits `json:"limits"`
}

// Prefill is the time to compute n tokens of a prompt after c tokens whose KV is already computed:
//
//	max(Floor, Base + PerToken*n + PerTokenSquared*((c+n)² - c²))
//
// Floor is the time of the shortest prompts, which does not grow with their length. The squared
// term is attention: each token attends to all earlier tokens, so later parts of a long prompt cost
// more.
type Prefill struct {
	Floor           float64 `json:"floor,omitempty"`           // seconds; 0 is none
	Base            float64 `json:"base"`                      // seconds
	PerToken        float64 `json:"perToken"`                  // seconds per uncached token
	PerTokenSquared float64 `json:"perTokenSquared,omitempty"` // seconds per uncached token, squared; 0 is none
	// MaxMeasuredTokens is how many tokens the longest prompt had that the terms were measured
	// with: times of longer prompts are extrapolated. 0 where that is not known.
	MaxMeasuredTokens int `json:"maxMeasuredTokens,omitempty"`
}

// Beyond reports whether a prompt with this number of tokens is longer than all measured prompts.
func (p Prefill) Beyond(tokens int) bool {
	return p.MaxMeasuredTokens > 0 && tokens > p.MaxMeasuredTokens
}

// Decode is the time of one decode step: Base + PerSequence * sequences in the batch + PerKVToken *
// tokens that they keep in the KV cache. The three terms are reading the weights, the work per
// sequence, and reading the cache.
type Decode struct {
	Base        float64 `json:"base"`        // seconds
	PerSequence float64 `json:"perSequence"` // seconds per sequence in the batch
	PerKVToken  float64 `json:"perKVToken"`  // seconds per token in the KV cache of the batch
	// AdapterSlowdown is how many times as long all of that takes where an adapter runs in the
	// step, at least 1; 0 means 1.
	AdapterSlowdown float64 `json:"adapterSlowdown,omitempty"`
}

// Spread is a time with its variation. The zero value takes no time.
type Spread struct {
	Mean   float64 `json:"mean"`             // seconds
	StdDev float64 `json:"stddev,omitempty"` // seconds
}

// Limits is what one engine holds at once.
type Limits struct {
	MaxSequences     int `json:"maxSequences"`     // requests in the batch; vLLM's max_num_seqs
	MaxBatchedTokens int `json:"maxBatchedTokens"` // tokens that one step computes; vLLM's max_num_batched_tokens
	KVBlocks         int `json:"kvBlocks"`         // blocks of KV cache; vLLM's num_gpu_blocks
	BlockSize        int `json:"blockSize"`        // tokens in a block
	GPUAdapters      int `json:"gpuAdapters"`      // adapter slots on the GPU; vLLM's max_loras; 0 means none
	HostAdapters     int `json:"hostAdapters"`     // adapters kept in host memory, those on the GPU among them; vLLM's max_cpu_loras
}

// Parse reads a profile from YAML. A field that no profile has, a negative time, or a limit that no
// engine could work with is an error that names the field.
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

// Error is "field is value: words".
func (f Fault) Error() string { return fmt.Sprintf("%s is %v: %s", f.Field, f.Value, f.Words) }

// Validate returns every fault of p, joined, or nil.
func (p Profile) Validate() error {
	var faults []error
	for _, f := range p.Faults() {
		faults = append(faults, f)
	}
	return errors.Join(faults...)
}

// Faults returns all invalid fields of p.
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

// Work is what one engine step computes. The zero value is nothing.
type Work struct {
	// PromptTokens are the tokens of all parts of prompts in the step. Squares is the sum of (c+n)²
	// - c² over these parts, each with n tokens after c tokens whose KV is already computed.
	PromptTokens int
	Squares      float64
	// Sequences get one more token each; their KV caches hold KVTokens together.
	Sequences, KVTokens int
	// Adapters reports whether an adapter runs in the step.
	Adapters bool
}

// AddPrompt adds a part of a prompt to the step: tokens after a context whose KV is already
// computed.
func (w *Work) AddPrompt(context, tokens int) {
	w.PromptTokens += tokens
	w.Squares += float64(tokens) * float64(2*context+tokens)
}

// PrefillTime predicts the seconds to compute a part of a prompt in one step, alone on the engine:
// tokens after a context whose KV is already computed. No tokens take no time. It allocates
// nothing.
func (p *Profile) PrefillTime(context, tokens int) float64 {
	var w Work
	w.AddPrompt(context, tokens)
	return p.StepTime(w)
}

// StepTime predicts the seconds of one engine step. A step reads the weights once, so a mixed step
// pays the larger of the two bases and not both; below the floor of prefill, prompt tokens are
// free, and sequences are not. A step with nothing to do takes no time. It allocates nothing.
func (p *Profile) StepTime(w Work) float64 {
	return max(p.LaunchTime(w), p.ComputeTime(w))
}

// LaunchTime predicts the seconds in which the engine starts the kernels of a step, and can do
// nothing else.
func (p *Profile) LaunchTime(w Work) float64 {
	if w.PromptTokens == 0 {
		return 0
	}
	return p.LaunchOverhead
}

// ComputeTime predicts the seconds in which the accelerator computes a step. Where the engine takes
// time to launch it, the floor of prefill is that time, and nothing that the accelerator does.
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
