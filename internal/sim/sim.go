// Package sim is the step model of one LLM engine: given a profile and the requests that arrive, it says when every
// token comes out.
//
// It follows the scheduler of vLLM V1. The engine works in steps. A step first gives one token to every running
// sequence (or the next part of a prompt that did not fit into one step), then admits waiting requests in order of
// arrival while there is room in the batch, in the token budget and in the KV cache. Prompts share cached blocks of
// KV, a sequence that finds no free block preempts the one admitted last, and a request for an adapter runs only where
// one of the adapter slots can serve it. What a step costs is profile.StepTime plus the loads of adapters in it, which
// everyone in the step waits for.
//
// An asynchronous engine (profile.Asynchronous) schedules and launches a step while the one before it is computed, and takes the output of that
// one afterwards. So a request that arrives waits for the step that is computed and for the one that is launched already, the output of a step
// is out when the next one is launched, and what the engine takes to launch a step is hidden as far as the accelerator has work.
//
// The package is pure: no clock, no goroutine, no lock, no randomness of its own. Time is float64 seconds since an
// origin that the caller chooses, randomness is an argument of [New], and the same calls give the same answers. The
// simulated engine runs it on the real clock; the fleet simulator and the estimator run it as fast as they can.
package sim

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// Errors of Submit and Load; match them with errors.Is.
var (
	// ErrEmpty refuses a request without a prompt token or without an output token.
	ErrEmpty = errors.New("sim: a request has at least one prompt token and one output token")
	// ErrTooLong refuses a request whose prompt and output the KV cache cannot hold even when it is alone: it would
	// wait for ever.
	ErrTooLong = errors.New("sim: the request never fits the KV cache")
	// ErrNoSlots refuses an adapter on an engine whose profile has no adapter slots.
	ErrNoSlots = errors.New("sim: the engine has no adapter slots")
)

// ID names a request or a load of one Engine. IDs start at 1 and are never used again.
type ID uint64

// Request is what a client asks for, and what the model will say: a simulation knows that beforehand.
type Request struct {
	// Adapter is the adapter's name; "" is the base model, which needs no slot.
	Adapter string
	// Prompt and Output are token ids. The engine keeps both and writes neither; requests may share one array.
	Prompt, Output []uint32
	// PromptTokens and OutputTokens are how many there are where nobody says which: Prompt and Output are nil then. Such a request shares
	// nothing with others.
	PromptTokens, OutputTokens int
}

// counted says that of the request's tokens it is only known how many there are.
func (r *Request) counted() bool { return r.PromptTokens > 0 }

// EventKind says what an Event reports.
type EventKind uint8

// The kinds, each with the fields of Event that it sets beside Kind and At.
const (
	// Scheduled (ID, Record so far): the request is in a batch for the first time; its step starts.
	Scheduled EventKind = iota + 1
	// Token (ID, Index): one output token is out.
	Token
	// Finished (ID, Record): the last output token is out; a Token came just before.
	Finished
	// Preempted (ID): the request lost its KV blocks and waits at the head of the queue, to be computed again.
	Preempted
	// HostLoaded (Adapter, and the ID where Load asked for it): the adapter's weights came from storage into host memory.
	HostLoaded
	// SlotLoaded (Adapter): the adapter's weights came from host memory into a slot.
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

// Record is the life of one request, in seconds: it queued from Arrived to Scheduled, prefilled until FirstToken and
// decoded until LastToken. A preempted request queues and prefills again within its decode time, as vLLM counts it.
type Record struct {
	Arrived, Scheduled, FirstToken, LastToken float64

	Cached      int // prompt tokens that the prefix cache held when the request was first scheduled
	Preemptions int
}

// Counts is what an engine reports of itself. The first group is the state now, the second only grows.
type Counts struct {
	Running  int     // requests in the batch
	Waiting  int     // requests not in the batch, Deferred among them
	Deferred int     // waiting requests that were passed over because no slot can serve their adapter
	KVUsage  float64 // share of the KV blocks that running requests hold, 0..1
	Slots    int     // adapter slots that hold an adapter

	PrefixQueries uint64 // prompt tokens looked up in the prefix cache
	PrefixHits    uint64 // prompt tokens found there
	Preemptions   uint64
	SlotLoads     uint64
	HostLoads     uint64

	// Of requests that have ended: how long they waited to be scheduled, were prefilled, and decoded, as their Records say.
	Queue, Prefill, Decode Timed
	// FirstToken is of requests whose first token is out, from their arrival, and InterToken of each further token, from the one before it.
	FirstToken, InterToken Timed
	PromptTokens           uint64 // of requests whose first token is out
	CachedTokens           uint64 // those among them that were cached when the request was first scheduled
	GeneratedTokens        uint64 // output tokens that are out
	PrefillTokens          uint64 // prompt tokens that were computed of the requests that Prefill counts
	Steps                  Steps
}

// Steps is the steps that gave a token, by their tokens: as vLLM counts, those that came out, and those of a prompt that were computed in the step
// that gives its first token.
type Steps struct {
	Count uint64
	// UpTo[i] is the number of steps with at most 2^i tokens.
	UpTo [15]uint64
}

// add counts n steps of so many tokens each.
func (s *Steps) add(n uint64, tokens int) {
	s.Count += n
	for i := max(0, bits.Len(uint(max(1, tokens)-1))); i < len(s.UpTo); i++ {
		s.UpTo[i] += n
	}
}

// Timed is how often something happened, and how many seconds all of it took.
type Timed struct {
	Count   uint64
	Seconds float64
}

func (t *Timed) add(seconds float64) {
	t.Count++
	t.Seconds += seconds
}

// Engine is one simulated engine. It is not safe for concurrent use: one goroutine owns it. Make it with New.
type Engine struct {
	// Immutable after New.
	profile profile.Profile
	normal  func() float64

	// The requests.
	last     ID
	live     map[ID]*sequence
	waiting  []*sequence // in order of arrival; preempted ones are before the others
	running  []*sequence // in order of admission
	deferred int         // of waiting

	// What they occupy.
	kv     blockCache
	host   shelf
	slots  shelf
	inUse  map[string]int // adapter -> running sequences
	active map[string]int // adapter -> unfinished requests that were scheduled at least once

	// The step that runs, where busy. An asynchronous engine has launched it, and until is when it takes the output of the step before.
	busy    bool
	until   float64
	batch   []scheduled
	ends    float64     // when batch is computed
	before  []scheduled // asynchronous: the step before, whose output is not out
	loaded  []Event     // loads that end with the step
	loads   []load      // loads asked for by Load, in order; one is a step of its own
	events  []Event     // what Advance returns
	counted Counts      // the growing counts
}

// sequence is a request on its way.
type sequence struct {
	Request
	id       ID
	prompt   int // tokens
	output   int
	record   Record
	produced int      // output tokens that are out
	flying   int      // output tokens of steps that were scheduled and are not out
	latest   float64  // when the last of them came out
	computed int      // leading tokens whose KV is computed, those of the running step included
	blocks   []int32  // KV blocks it holds
	hashes   []uint64 // chained hashes of its leading full blocks, as far as they were needed
	started  bool     // scheduled at least once
	deferred bool
	gone     bool // finished, or cancelled
}

// load is an adapter that Load asked for.
type load struct {
	id      ID
	adapter string
	at      float64
}

// New returns an idle engine. It draws the variation of load times from normal, a source of standard normal numbers;
// nil means that every load takes the mean. A profile that no engine could work with is an error.
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
		host:    newShelf(p.Limits.HostAdapters),
		slots:   newShelf(p.Limits.GPUAdapters),
		inUse:   map[string]int{},
		active:  map[string]int{},
	}, nil
}

// Copy returns an engine that is what this one is, and goes on by itself: to try what would come. It draws load times from a source of its
// own, as of [New]. Requests are not copied: nobody writes to them.
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

// MaxTokens is the most tokens, prompt and output together, that a request may have.
func (e *Engine) MaxTokens() int {
	// The last token ends the request: its KV is never computed.
	return e.kv.capacity*e.kv.size + 1
}

// Submit queues a request that arrives at the given time, which is not before that of an earlier call. The request is
// seen by the first step that starts then or later.
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

// Prefix is a prompt that engines are asked about, for an adapter: it is hashed once, as far as one of them has it. Those engines have blocks
// of one size. It is used from one goroutine.
type Prefix struct{ of sequence }

// PrefixOf returns the Prefix of a prompt, which it keeps and does not write.
func PrefixOf(adapter string, prompt []uint32) Prefix {
	return Prefix{sequence{Request: Request{Adapter: adapter, Prompt: prompt}}}
}

// Cached is how many leading tokens of a prompt the prefix cache holds now: those that a request would not compute.
func (e *Engine) Cached(p *Prefix) int {
	if len(p.of.Prompt) == 0 {
		return 0
	}
	p.of.blocks = e.kv.find(&p.of, (len(p.of.Prompt)-1)/e.kv.size)
	return len(p.of.blocks) * e.kv.size
}

// Load brings an adapter from storage into host memory, even where it is there already: its weights may have changed.
// The engine does it between two steps and nothing runs meanwhile. A HostLoaded event with the returned ID tells its
// end. Times follow the rule of Submit.
func (e *Engine) Load(at float64, adapter string) (ID, error) {
	if e.slots.capacity == 0 {
		return 0, fmt.Errorf("%w: adapter %q", ErrNoSlots, adapter)
	}
	e.last++
	e.loads = append(e.loads, load{e.last, adapter, at})
	return e.last, nil
}

// Cancel ends a request at once and reports whether it was there. Its blocks are free for the next step; the step that
// runs is not shortened. No event follows.
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

// Next says when Advance has something to do: when the step that runs ends, or when an idle engine may start one. It
// reports false when the engine is idle and nothing waits.
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

// Advance ends the step that runs, if it is due by now, and starts the next one at now. It returns what happened, in
// order; the slice is good until the next call. Calling it late makes the step that much longer, calling it early does
// nothing.
func (e *Engine) Advance(now float64) []Event {
	if at, ok := e.Next(); !ok || at > now {
		return nil
	}
	e.events = e.events[:0]
	if e.profile.Asynchronous {
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

// Counts returns the engine's figures. Those of the step that runs are in it.
func (e *Engine) Counts() Counts {
	c := e.counted
	c.Running = len(e.running)
	c.Waiting = len(e.waiting)
	c.Deferred = e.deferred
	c.KVUsage = e.kv.usage()
	c.Slots = len(e.slots.used)
	return c
}

// Active appends to dst, sorted, the adapters of unfinished requests that were scheduled at least once.
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

// Host returns the adapters in host memory, those in slots among them, the most recently used first.
func (e *Engine) Host() []string { return e.host.names() }

// leave takes from a sequence what a running one holds. The caller has taken it out of running.
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

// setDeferred keeps the count of deferred requests in step with their marks.
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

// increment and decrement count by adapter; the base model is not counted, and no name stays with a count of 0.
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
