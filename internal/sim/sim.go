// Package sim simulates one LLM engine step by step. From a profile and the arriving requests, it
// computes the time of every output token.
//
// It follows the scheduler of vLLM V1. The engine works in steps. A step first gives every running
// sequence one token, or computes the next part of a prompt that did not fit into one step. It then
// admits waiting requests in order of arrival, as long as the batch, the token budget and the KV
// cache have room. Prompts share cached KV blocks. If a sequence finds no free block, it preempts
// the sequence that was admitted last. A request for an adapter runs only if an adapter slot is
// available. A step takes profile.StepTime, plus the time to load its adapters, which delays all
// sequences of the step.
//
// An engine with asynchronous scheduling (profile.AsyncScheduling) schedules and launches a step
// while the previous one is computed, and handles the output of the previous step afterwards. So a
// new request waits for the step that is being computed and for the step that is already launched.
// The output of a step appears when the next step has been launched. Launch time is hidden as long
// as the accelerator has work.
//
// The package is pure: it has no clock, goroutines, locks or randomness of its own. Times are
// float64 seconds since an origin that the caller chooses. Random numbers come from an argument of
// [New]. The same calls give the same results. The simulated engine runs in real time; the fleet
// simulator and the estimator run without waiting.
package sim

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// The errors of Submit and Load, for use with errors.Is.
var (
	// ErrEmpty is the error for a request without prompt tokens or without output tokens.
	ErrEmpty = errors.New("sim: a request has at least one prompt token and one output token")
	// ErrTooLong is the error for a request whose prompt and output together do not fit into the KV
	// cache, so that it could never finish.
	ErrTooLong = errors.New("sim: the request never fits the KV cache")
	// ErrNoSlots is the error for an adapter on an engine that has no adapter slots.
	ErrNoSlots = errors.New("sim: the engine has no adapter slots")
)

// ID identifies a request or an adapter load of one Engine. IDs start at 1 and are never reused.
type ID uint64

// Request is a request to the engine. It includes the output, because a simulation must know the
// output in advance.
type Request struct {
	// Adapter is the name of an adapter. For the base model it is "", and the request needs no
	// slot.
	Adapter string
	// Prompt and Output are token IDs. The engine stores the slices but never changes them, so
	// several requests may use the same slices.
	Prompt, Output []uint32
	// PromptTokens and OutputTokens are numbers of tokens. If they are set, Prompt and Output are
	// nil, and the request shares no cached blocks with others.
	PromptTokens, OutputTokens int
}

// counted reports whether the request has only numbers of tokens instead of token IDs.
func (r *Request) counted() bool { return r.PromptTokens > 0 }

// EventKind says what happened in an Event.
type EventKind uint8

// The kinds of events. Each sets Kind, At and the fields in parentheses.
const (
	// Scheduled (ID, Record so far): a step that starts now includes the request for the first
	// time.
	Scheduled EventKind = iota + 1
	// Token (ID, Index): the engine has produced an output token.
	Token
	// Finished (ID, Record): the engine has produced the last output token. A Token event comes
	// before.
	Finished
	// Preempted (ID): the request lost its KV blocks. It waits at the head of the queue, and its KV
	// will be computed again.
	Preempted
	// HostLoaded (Adapter, and ID if Load requested it): the engine has loaded the adapter's
	// weights from storage into host memory.
	HostLoaded
	// SlotLoaded (Adapter): the engine has loaded the adapter's weights from host memory into a
	// slot.
	SlotLoaded
)

// Event is something that happened in the engine.
type Event struct {
	Kind    EventKind
	At      float64 // time in seconds
	ID      ID
	Index   int // index of the token in Request.Output
	Adapter string
	Record  Record
}

// Record contains the times of one request in seconds. The request was in the queue from Arrived to
// Scheduled, in prefill until FirstToken, and in decode until LastToken. After a preemption, the
// time in the queue and in prefill is part of the decode time, as in vLLM.
type Record struct {
	Arrived, Scheduled, FirstToken, LastToken float64

	Cached      int // number of cached prompt tokens when the request was first scheduled
	Preemptions int
}

// Counts contains what an engine reports. The first group is its current state; the others are
// counters.
type Counts struct {
	Running  int     // number of requests in the batch
	Waiting  int     // number of requests that are not in the batch, including Deferred
	Deferred int     // number of waiting requests that were skipped because their adapter got no slot
	KVUsage  float64 // share of KV blocks that running requests use, from 0 to 1
	Slots    int     // number of occupied adapter slots

	PrefixQueries uint64 // number of prompt tokens that were looked up in the prefix cache
	PrefixHits    uint64 // number of prompt tokens that were found in the prefix cache
	Preemptions   uint64
	SlotLoads     uint64
	HostLoads     uint64

	// Queue, Prefill and Decode contain the times of ended requests, from their Records.
	Queue, Prefill, Decode Timed
	// FirstToken contains times from arrival to the first token. InterToken contains times between
	// tokens.
	FirstToken, InterToken Timed
	PromptTokens           uint64 // prompt tokens of requests that have had a first token
	CachedTokens           uint64 // part of PromptTokens that was cached when the request was first scheduled
	GeneratedTokens        uint64 // output tokens that the engine has produced
	PrefillTokens          uint64 // prompt tokens of ended requests that were not cached
	Steps                  Steps
}

// Steps is a histogram of the steps that produced a token, by number of tokens. As in vLLM, these
// are the output tokens of the step, plus the computed prompt tokens of requests whose first token
// the step produced.
type Steps struct {
	Count uint64
	// UpTo[i] is the number of steps that had at most 2^i tokens.
	UpTo [15]uint64
}

// add adds n steps that each had this number of tokens.
func (s *Steps) add(n uint64, tokens int) {
	s.Count += n
	for i := max(0, bits.Len(uint(max(1, tokens)-1))); i < len(s.UpTo); i++ {
		s.UpTo[i] += n
	}
}

// Timed is a number of events and their total time in seconds.
type Timed struct {
	Count   uint64
	Seconds float64
}

func (t *Timed) add(seconds float64) {
	t.Count++
	t.Seconds += seconds
}

// Engine is one simulated engine. Use [New] to create it. It is not safe for concurrent use.
type Engine struct {
	// These fields do not change after New.
	profile profile.Profile
	normal  func() float64

	// The requests of the engine.
	last     ID
	live     map[ID]*sequence
	waiting  []*sequence // queue in order of arrival, with preempted requests first
	running  []*sequence // batch in order of admission
	deferred int         // number of deferred requests in waiting

	// The KV cache and the adapters.
	kv     blockCache
	host   collection
	slots  collection
	inUse  map[string]int // adapter -> number of running sequences
	active map[string]int // adapter -> number of unfinished requests that were scheduled at least once

	// If busy is true, a step is running, which ends at the time in until. If the engine schedules
	// asynchronously, that step was launched, and until is when the engine handles the output of
	// the previous step.
	busy    bool
	until   float64
	batch   []scheduled
	ends    float64     // when the accelerator has computed batch
	before  []scheduled // with asynchronous scheduling: the previous step, whose output was not handled
	loaded  []Event     // events of the adapter loads that end with the step
	loads   []load      // loads requested with Load, in order; each has a step of its own
	events  []Event     // the result of Advance
	counted Counts      // only the fields that count events; the others are 0
}

// sequence is an unfinished request in the engine.
type sequence struct {
	Request
	id       ID
	prompt   int // number of tokens
	output   int
	record   Record
	produced int      // number of output tokens that the engine has produced
	flying   int      // number of output tokens in scheduled steps whose output was not handled
	latest   float64  // when its latest output token was produced
	computed int      // number of leading tokens whose KV is computed, including the running step
	blocks   []int32  // indexes of its KV blocks
	hashes   []uint64 // hashes of its leading full blocks; computed as needed
	started  bool     // was scheduled at least once
	deferred bool
	gone     bool // finished or cancelled
}

// load is an adapter load requested with Load.
type load struct {
	id      ID
	adapter string
	at      float64
}

// New returns an idle engine. normal returns standard normal random numbers, from which load times
// are drawn; if it is nil, every load takes the mean. New returns an error if the profile is
// invalid.
func New(p profile.Profile, normal func() float64) (*Engine, error) {
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("sim: profile %q: %w", p.Name, err)
	}
	if p.Limits.KVBlocks <= reservedBlocks {
		return nil, fmt.Errorf("sim: profile %q: limits.kvBlocks is %d: %d is reserved", p.Name, p.Limits.KVBlocks, reservedBlocks)
	}
	if normal == nil {
		normal = func() float64 { return 0 }
	}
	return &Engine{
		profile: p,
		normal:  normal,
		live:    map[ID]*sequence{},
		kv:      newBlockCache(p.Limits.KVBlocks-reservedBlocks, p.Limits.BlockSize),
		host:    newCollection(p.Limits.HostAdapters),
		slots:   newCollection(p.Limits.GPUAdapters),
		inUse:   map[string]int{},
		active:  map[string]int{},
	}, nil
}

// Copy returns an independent copy of the engine, with which a caller can simulate what would
// happen. normal is as for [New]. The copy shares the requests, which never change.
func (e *Engine) Copy(normal func() float64) *Engine {
	c := *e
	if c.normal = normal; normal == nil {
		c.normal = func() float64 { return 0 }
	}
	c.live = make(map[ID]*sequence, len(e.live))
	for id, s := range e.live {
		is := *s
		is.blocks, is.hashes = slices.Clone(s.blocks), slices.Clone(s.hashes)
		c.live[id] = &is
	}
	own := func(all []*sequence) []*sequence {
		is := make([]*sequence, len(all))
		for i, s := range all {
			is[i] = c.live[s.id]
		}
		return is
	}
	c.waiting, c.running = own(e.waiting), own(e.running)
	c.kv.blocks, c.kv.buckets = slices.Clone(e.kv.blocks), slices.Clone(e.kv.buckets)
	c.host.used, c.slots.used = maps.Clone(e.host.used), maps.Clone(e.slots.used)
	c.inUse, c.active = maps.Clone(e.inUse), maps.Clone(e.active)
	parts := func(all []scheduled) []scheduled {
		all = slices.Clone(all)
		for i, b := range all {
			if all[i].s = c.live[b.s.id]; all[i].s == nil { // the request was cancelled during the step
				all[i].s = &sequence{gone: true}
			}
		}
		return all
	}
	c.batch, c.before = parts(e.batch), parts(e.before)
	c.loaded, c.loads, c.events = slices.Clone(e.loaded), slices.Clone(e.loads), nil
	return &c
}

// MaxTokens returns the maximum number of tokens of a request, prompt and output together.
func (e *Engine) MaxTokens() int {
	// The last output token needs no room: its KV is never computed.
	return e.kv.capacity*e.kv.size + 1
}

// Submit adds a request to the queue at the time at. Times must not decrease from call to call.
// Steps that start at that time or later can schedule the request.
func (e *Engine) Submit(at float64, r Request) (ID, error) {
	prompt, output := len(r.Prompt), len(r.Output)
	if r.counted() {
		prompt, output = r.PromptTokens, r.OutputTokens
	}
	switch {
	case prompt <= 0 || output <= 0:
		return 0, ErrEmpty
	case prompt+output > e.MaxTokens():
		return 0, fmt.Errorf("%w: %d prompt and %d output tokens, it holds %d", ErrTooLong, prompt, output, e.MaxTokens())
	case r.Adapter != "" && e.slots.capacity == 0:
		return 0, fmt.Errorf("%w: adapter %q", ErrNoSlots, r.Adapter)
	}
	e.last++
	s := &sequence{Request: r, id: e.last, prompt: prompt, output: output, record: Record{Arrived: at}}
	e.live[s.id] = s
	e.waiting = append(e.waiting, s)
	return s.id, nil
}

// Prefix is a prompt that can be looked up in the prefix caches of several engines, which must have
// the same block size. Each block is hashed only once, when needed. It is not safe for concurrent
// use.
type Prefix struct{ of sequence }

// PrefixOf returns the Prefix of a prompt. It stores the slice prompt but does not change it.
func PrefixOf(adapter string, prompt []uint32) Prefix {
	return Prefix{sequence{Request: Request{Adapter: adapter, Prompt: prompt}}}
}

// Cached returns how many leading tokens of a prompt are in the engine's prefix cache. A request
// would not compute these tokens.
func (e *Engine) Cached(p *Prefix) int {
	if len(p.of.Prompt) == 0 {
		return 0
	}
	p.of.blocks = e.kv.find(&p.of, (len(p.of.Prompt)-1)/e.kv.size)
	return len(p.of.blocks) * e.kv.size
}

// Load loads an adapter from storage into host memory, even if the adapter is already there,
// because its weights may have changed. The load is a step in which no request runs. When the load
// ends, there is a HostLoaded event with the returned ID. Times must not decrease from call to
// call.
func (e *Engine) Load(at float64, adapter string) (ID, error) {
	if e.slots.capacity == 0 {
		return 0, fmt.Errorf("%w: adapter %q", ErrNoSlots, adapter)
	}
	e.last++
	e.loads = append(e.loads, load{e.last, adapter, at})
	return e.last, nil
}

// Cancel ends a request immediately, without an event. It reports whether the engine had the
// request. The next step can use the request's blocks. The running step does not become shorter.
func (e *Engine) Cancel(id ID) bool {
	s, ok := e.live[id]
	if !ok {
		return false
	}
	if i := slices.Index(e.running, s); i >= 0 {
		e.running = slices.Delete(e.running, i, i+1)
		e.leave(s)
	} else {
		i := slices.Index(e.waiting, s)
		e.waiting = slices.Delete(e.waiting, i, i+1)
		e.setDeferred(s, false)
	}
	e.forget(s)
	return true
}

// Next returns the time of the next call of Advance: when the running step ends, or when an idle
// engine may start a step. ok is false if the engine is idle and has nothing to do.
func (e *Engine) Next() (at float64, ok bool) {
	if e.busy {
		return e.until, true
	}
	if len(e.waiting) > 0 {
		at, ok = e.waiting[0].record.Arrived, true
	}
	if len(e.loads) > 0 && (!ok || e.loads[0].at < at) {
		at, ok = e.loads[0].at, true
	}
	return at, ok
}

// Advance ends the running step if it is due at the time now, and then starts the next step. It
// returns the events in order; the slice is valid until the next call. If the call is late, the
// step takes longer. If it is early, nothing happens.
func (e *Engine) Advance(now float64) []Event {
	if at, ok := e.Next(); !ok || at > now {
		return nil
	}
	e.events = e.events[:0]
	if e.profile.AsyncScheduling {
		e.advanceAsync(now)
		return e.events
	}
	if e.busy {
		e.finishLoads(now)
		e.finishStep(e.batch, now)
	}
	e.startStep(now)
	return e.events
}

// Counts returns the engine's current state and counters.
func (e *Engine) Counts() Counts {
	c := e.counted
	c.Running = len(e.running)
	c.Waiting = len(e.waiting)
	c.Deferred = e.deferred
	c.KVUsage = e.kv.usage()
	c.Slots = len(e.slots.used)
	return c
}

// Active appends to dst the adapters of unfinished requests that were scheduled at least once,
// sorted by name.
func (e *Engine) Active(dst []string) []string {
	start := len(dst)
	for name := range e.active {
		dst = append(dst, name)
	}
	slices.Sort(dst[start:])
	return dst
}

// Slots returns the adapters in slots, the most recently used first.
func (e *Engine) Slots() []string { return e.slots.names() }

// Host returns the adapters in host memory, including those in slots, the most recently used first.
func (e *Engine) Host() []string { return e.host.names() }

// leave frees the resources of a running sequence. The caller has removed the sequence from
// running.
func (e *Engine) leave(s *sequence) {
	e.kv.release(s.blocks)
	s.blocks = s.blocks[:0]
	s.computed = 0
	decrement(e.inUse, s.Adapter)
}

// forget removes a request that is neither in waiting nor in running.
func (e *Engine) forget(s *sequence) {
	delete(e.live, s.id)
	s.gone = true
	if s.started {
		decrement(e.active, s.Adapter)
	}
}

// setDeferred marks a sequence as deferred or not, and updates the number of deferred requests.
func (e *Engine) setDeferred(s *sequence, deferred bool) {
	if s.deferred == deferred {
		return
	}
	s.deferred = deferred
	if deferred {
		e.deferred++
	} else {
		e.deferred--
	}
}

// increment adds 1 to the count of an adapter, and decrement subtracts 1. They ignore the base
// model. decrement removes adapters whose count becomes 0.
func increment(counts map[string]int, adapter string) {
	if adapter != "" {
		counts[adapter]++
	}
}

func decrement(counts map[string]int, adapter string) {
	if adapter == "" {
		return
	}
	if counts[adapter]--; counts[adapter] == 0 {
		delete(counts, adapter)
	}
}
