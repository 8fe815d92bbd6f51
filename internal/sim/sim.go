// Package sim is the step model of one LLM engine: given a profile and the arriving requests, it
// computes when every token comes out.
//
// It follows the scheduler of vLLM V1. The engine works in steps. A step first gives one token to
// every running sequence (or computes the next part of a prompt that did not fit into one step),
// then admits waiting requests in order of arrival while there is room in the batch, in the token
// budget and in the KV cache. Prompts share cached KV blocks, a sequence that finds no free block
// preempts the one admitted last, and a request for an adapter runs only if an adapter slot is
// available. A step takes profile.StepTime plus the loads of adapters in it, which delay every
// sequence of the step.
//
// An asynchronous engine (profile.Asynchronous) schedules and launches a step while the previous
// one is computed, and takes the output of the previous one afterwards. So an arriving request
// waits for the step being computed and for the one already launched, the output of a step comes
// out when the next one is launched, and launch time is hidden as long as the accelerator has work.
//
// The package is pure: no clock, no goroutine, no lock, no randomness of its own. Time is float64
// seconds since an origin that the caller chooses, randomness is an argument of [New], and the same
// calls give the same results. The simulated engine runs it in real time; the fleet simulator and
// the estimator run it as fast as they can.
package sim

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// Errors of Submit and Load, for errors.Is.
var (
	// ErrEmpty refuses a request without a prompt token or without an output token.
	ErrEmpty = errors.New("sim: a request has at least one prompt token and one output token")
	// ErrTooLong refuses a request whose prompt and output exceed the KV cache: it could never
	// finish.
	ErrTooLong = errors.New("sim: the request never fits the KV cache")
	// ErrNoSlots refuses an adapter on an engine whose profile has no adapter slots.
	ErrNoSlots = errors.New("sim: the engine has no adapter slots")
)

// ID identifies a request or a load of one Engine. IDs start at 1 and are never reused.
type ID uint64

// Request is a request together with its output, which a simulation knows beforehand.
type Request struct {
	// Adapter is the adapter's name; "" is the base model, which needs no slot.
	Adapter string
	// Prompt and Output are token ids. The engine keeps but never changes them; requests may share
	// an array.
	Prompt, Output []uint32
	// PromptTokens and OutputTokens are the numbers of tokens if the tokens themselves are not
	// given: Prompt and Output are nil then, and the request shares nothing with others.
	PromptTokens, OutputTokens int
}

// counted reports whether only the numbers of tokens are given.
func (r *Request) counted() bool { return r.PromptTokens > 0 }

// EventKind is what an Event reports.
type EventKind uint8

// The kinds, each with the fields of Event that it sets besides Kind and At.
const (
	// Scheduled (ID, Record so far): the request is in a batch for the first time; its step starts.
	Scheduled EventKind = iota + 1
	// Token (ID, Index): one output token is out.
	Token
	// Finished (ID, Record): the last output token is out; a Token came just before.
	Finished
	// Preempted (ID): the request lost its KV blocks and waits at the head of the queue, to be
	// computed again.
	Preempted
	// HostLoaded (Adapter, and the ID of a Load): the adapter's weights were loaded from storage
	// into host memory.
	HostLoaded
	// SlotLoaded (Adapter): the adapter's weights were loaded from host memory into a slot.
	SlotLoaded
)

// Event is something that happened in the engine.
type Event struct {
	Kind    EventKind
	At      float64 // seconds
	ID      ID
	Index   int // of the token in Request.Output
	Adapter string
	Record  Record
}

// Record is the timing of one request in seconds: it was queued from Arrived to Scheduled, in
// prefill until FirstToken, and decoded until LastToken. Preemption adds queue and prefill time to
// its decode time, as vLLM counts it.
type Record struct {
	Arrived, Scheduled, FirstToken, LastToken float64

	Cached      int // prompt tokens found in the prefix cache when the request was first scheduled
	Preemptions int
}

// Counts is an engine's own report. The first group is its current state, the second are counters.
type Counts struct {
	Running  int     // requests in the batch
	Waiting  int     // requests not in the batch, Deferred among them
	Deferred int     // waiting requests that were skipped because no slot is available for their adapter
	KVUsage  float64 // share of the KV blocks that running requests use, 0..1
	Slots    int     // occupied adapter slots

	PrefixQueries uint64 // prompt tokens looked up in the prefix cache
	PrefixHits    uint64 // prompt tokens found there
	Preemptions   uint64
	SlotLoads     uint64
	HostLoads     uint64

	// Times of ended requests in the queue, in prefill and in decode, from their Records.
	Queue, Prefill, Decode Timed
	// FirstToken is the time from arrival to the first token; InterToken is the time between
	// further tokens.
	FirstToken, InterToken Timed
	PromptTokens           uint64 // of requests with a first token
	CachedTokens           uint64 // those of them cached when the request was first scheduled
	GeneratedTokens        uint64 // output tokens that are out
	PrefillTokens          uint64 // computed prompt tokens of the requests in Prefill
	Steps                  Steps
}

// Steps is a histogram of the steps that produced a token, by their tokens as vLLM counts them:
// output tokens, and prompt tokens computed in the step that gives their first token.
type Steps struct {
	Count uint64
	// UpTo[i] is the number of steps with at most 2^i tokens.
	UpTo [15]uint64
}

// add counts n steps with tokens each.
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

// Engine is one simulated engine. It is not safe for concurrent use. Make it with New.
type Engine struct {
	// Immutable after New.
	profile profile.Profile
	normal  func() float64

	// The requests.
	last     ID
	live     map[ID]*sequence
	waiting  []*sequence // in order of arrival, preempted ones first
	running  []*sequence // in order of admission
	deferred int         // among waiting

	// Resources.
	kv     blockCache
	host   collection
	slots  collection
	inUse  map[string]int // adapter -> running sequences
	active map[string]int // adapter -> unfinished requests that were scheduled at least once

	// The running step, if busy. An asynchronous engine has launched it and takes the previous
	// step's output at until.
	busy    bool
	until   float64
	batch   []scheduled
	ends    float64     // when batch has been computed
	before  []scheduled // asynchronous: the previous step, whose output is not out
	loaded  []Event     // loads that end with the step
	loads   []load      // loads requested with Load, in order; each is a step of its own
	events  []Event     // returned by Advance
	counted Counts      // the counters
}

// sequence is a request in the engine.
type sequence struct {
	Request
	id       ID
	prompt   int // tokens
	output   int
	record   Record
	produced int      // output tokens that are out
	flying   int      // output tokens of scheduled steps that are not out
	latest   float64  // when the last of them came out
	computed int      // leading tokens whose KV is computed, including the running step's
	blocks   []int32  // its KV blocks
	hashes   []uint64 // chained hashes of its leading full blocks, computed as needed
	started  bool     // scheduled at least once
	deferred bool
	gone     bool // finished or cancelled
}

// load is an adapter load requested with Load.
type load struct {
	id      ID
	adapter string
	at      float64
}

// New returns an idle engine. Normal is a source of standard normal numbers for the variation of
// load times; nil means that every load takes the mean. An unusable profile is an error.
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

// Copy returns an independent copy of the engine, to simulate what would happen. Normal is as for
// [New]. Both share the requests, which are never changed.
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
			if all[i].s = c.live[b.s.id]; all[i].s == nil { // cancelled meanwhile
				all[i].s = &sequence{gone: true}
			}
		}
		return all
	}
	c.batch, c.before = parts(e.batch), parts(e.before)
	c.loaded, c.loads, c.events = slices.Clone(e.loaded), slices.Clone(e.loads), nil
	return &c
}

// MaxTokens is the maximum of prompt and output tokens of a request.
func (e *Engine) MaxTokens() int {
	// The last token ends the request; its KV is never computed.
	return e.kv.capacity*e.kv.size + 1
}

// Submit queues a request that arrives at the given time. Times must not decrease between calls.
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

// Prefix is a prompt to look up in the prefix caches of several engines with the same block size.
// It is hashed once, as far as needed. It is not safe for concurrent use.
type Prefix struct{ of sequence }

// PrefixOf returns the Prefix of a prompt, which it keeps but does not change.
func PrefixOf(adapter string, prompt []uint32) Prefix {
	return Prefix{sequence{Request: Request{Adapter: adapter, Prompt: prompt}}}
}

// Cached is the number of leading prompt tokens in the prefix cache, which a request would not
// compute.
func (e *Engine) Cached(p *Prefix) int {
	if len(p.of.Prompt) == 0 {
		return 0
	}
	p.of.blocks = e.kv.find(&p.of, (len(p.of.Prompt)-1)/e.kv.size)
	return len(p.of.blocks) * e.kv.size
}

// Load loads an adapter from storage into host memory, even if it is there already, since its
// weights may have changed. The engine does this between two steps; nothing else runs meanwhile. A
// HostLoaded event with the returned ID reports its end. Times are as for Submit.
func (e *Engine) Load(at float64, adapter string) (ID, error) {
	if e.slots.capacity == 0 {
		return 0, fmt.Errorf("%w: adapter %q", ErrNoSlots, adapter)
	}
	e.last++
	e.loads = append(e.loads, load{e.last, adapter, at})
	return e.last, nil
}

// Cancel ends a request at once and reports whether it was there. Its blocks are free for the next
// step; the running step is not shortened. No event follows.
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

// Next returns when Advance has something to do: when the running step ends, or when an idle engine
// may start one. It returns false if the engine is idle and nothing waits.
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

// Advance ends the running step, if it is due by now, and starts the next one at now. It returns
// the events in order; the slice is valid until the next call. A late call lengthens the step, an
// early one does nothing.
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

// Counts returns the engine's counts, including the running step's.
func (e *Engine) Counts() Counts {
	c := e.counted
	c.Running = len(e.running)
	c.Waiting = len(e.waiting)
	c.Deferred = e.deferred
	c.KVUsage = e.kv.usage()
	c.Slots = len(e.slots.used)
	return c
}

// Active appends to dst, sorted, the adapters of unfinished requests that were scheduled at least
// once.
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

// leave frees a running sequence's resources. The caller has removed it from running.
func (e *Engine) leave(s *sequence) {
	e.kv.release(s.blocks)
	s.blocks = s.blocks[:0]
	s.computed = 0
	decrement(e.inUse, s.Adapter)
}

// forget ends a request that neither waits nor runs.
func (e *Engine) forget(s *sequence) {
	delete(e.live, s.id)
	s.gone = true
	if s.started {
		decrement(e.active, s.Adapter)
	}
}

// setDeferred sets a sequence's mark and updates the count of deferred requests.
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

// increment and decrement count by adapter. The base model is not counted, and names with a count
// of 0 are removed.
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
