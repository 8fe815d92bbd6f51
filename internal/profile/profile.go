// Package profile is the model of time: how long one engine on one kind of hardware takes to prefill a prompt, to make
// one decode step, and to load a model, and how much it holds.
//
// Every decision of Headgate asks it the same question, how long will this take here: pick to predict the time to the
// first token, place to weigh a load, provision to simulate a fleet. The simulated engine runs on it too, so that a
// plan and a test speak of the same machine.
//
// A profile is written as YAML and read by [Parse]. All times are in seconds. Values are immutable once made and safe
// for concurrent use.
package profile

import (
	"errors"
	"fmt"
	"math"

	"sigs.k8s.io/yaml"
)

// Profile is the latency behaviour of one engine on one kind of hardware.
type Profile struct {
	// Name says which model on which hardware, for people.
	Name string `json:"name"`
	// Source says where the figures come from: a measurement, a paper, a fit and its error.
	Source string `json:"source,omitempty"`

	Prefill Prefill `json:"prefill"`
	Decode  Decode  `json:"decode"`
	// Load is the time to bring a model from storage into host memory.
	Load Spread `json:"load"`
	// Slot is the time to bring an adapter from host memory into a GPU slot.
	Slot Spread `json:"slot"`

	Limits Limits `json:"limits"`
}

// Prefill is the time to compute a prompt: Base + PerToken * tokens that no cache holds.
type Prefill struct {
	Base     float64 `json:"base"`     // seconds
	PerToken float64 `json:"perToken"` // seconds per uncached token
}

// Decode is the time of one decode step: Base + PerSequence * sequences in the batch + PerKVToken * tokens that they
// keep in the KV cache. The three terms are reading the weights, the work per sequence, and reading the cache.
type Decode struct {
	Base        float64 `json:"base"`        // seconds
	PerSequence float64 `json:"perSequence"` // seconds per sequence in the batch
	PerKVToken  float64 `json:"perKVToken"`  // seconds per token in the KV cache of the batch
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

// Parse reads a profile from YAML. A field that no profile has, a negative time, or a limit that no engine could work
// with is an error that names the field.
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

// Validate returns every fault of p, joined, or nil.
func (p Profile) Validate() error {
	var faults []error
	for _, t := range []struct {
		field   string
		seconds float64
	}{
		{"prefill.base", p.Prefill.Base},
		{"prefill.perToken", p.Prefill.PerToken},
		{"decode.base", p.Decode.Base},
		{"decode.perSequence", p.Decode.PerSequence},
		{"decode.perKVToken", p.Decode.PerKVToken},
		{"load.mean", p.Load.Mean},
		{"load.stddev", p.Load.StdDev},
		{"slot.mean", p.Slot.Mean},
		{"slot.stddev", p.Slot.StdDev},
	} {
		if t.seconds < 0 || math.IsNaN(t.seconds) || math.IsInf(t.seconds, 0) {
			faults = append(faults, fmt.Errorf("%s is %v: a time in seconds is finite and not negative", t.field, t.seconds))
		}
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
	} {
		if l.value < l.min {
			faults = append(faults, fmt.Errorf("%s is %d: it must be at least %d", l.field, l.value, l.min))
		}
	}
	return errors.Join(faults...)
}

// Times returns the profile of an engine all of whose times are so many times as long.
func (p Profile) Times(factor float64) Profile {
	for _, seconds := range []*float64{
		&p.Prefill.Base, &p.Prefill.PerToken, &p.Decode.Base, &p.Decode.PerSequence, &p.Decode.PerKVToken, &p.Load.Mean, &p.Load.StdDev, &p.Slot.Mean, &p.Slot.StdDev,
	} {
		*seconds *= factor
	}
	return p
}

// PrefillTime predicts the seconds to compute uncached prompt tokens, alone on the engine.
func (p Profile) PrefillTime(uncached int) float64 {
	return p.Prefill.Base + p.Prefill.PerToken*float64(uncached)
}

// StepTime predicts the seconds of one engine step that computes prefill prompt tokens and one token for each of
// sequences running ones, whose KV caches hold kvTokens together. A step reads the weights once, so a mixed step pays
// the larger of the two bases and not both. A step with nothing to do takes no time.
func (p Profile) StepTime(prefill, sequences, kvTokens int) float64 {
	var base float64
	if prefill > 0 {
		base = p.Prefill.Base
	}
	if sequences > 0 {
		base = max(base, p.Decode.Base)
	}
	return base + p.Prefill.PerToken*float64(prefill) +
		p.Decode.PerSequence*float64(sequences) + p.Decode.PerKVToken*float64(kvTokens)
}
