package place

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/loader"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// endpointWorker manages one endpoint: it scrapes the engine at intervals and tells it to load and
// unload models.
type endpointWorker struct {
	loader.Endpoint
	adapters adapters
	room     objects.Room // only for an engine with a model repository
	loader   *loader.Loader
	placer   *Placer
	stop     context.CancelFunc
	anew     bool                // the runtime restarted and must be made ready; guarded by Placer.mu
	kind     engine.Kind         // kind of the engine, as scrapes found it; guarded by Placer.mu
	fault    string              // why the last scrape failed; guarded by Placer.mu
	seen     conditions.Endpoint // state by the last scrape; guarded by Placer.mu
	due      chan struct{}       // receives when a scrape is due now; capacity 1, never closed
	runtime  bool                // the engine is a model runtime: it has no model list and may have to be made ready
	// terminating: the endpoint's pod was being deleted at the last update of the objects; guarded
	// by Placer.mu.
	terminating bool
	// unloads is the number of failed unloads in a row, by model; guarded by Placer.mu.
	unloads map[string]int
}

// adapters contains limits from the settings of an endpoint's pools; 0 means that no limit is set.
// most is the largest number of registered adapters, and host the largest number in host memory.
type adapters struct{ most, host int }

// requestScrape makes scrapeLoop scrape the engine now.
func (s *endpointWorker) requestScrape() {
	select {
	case s.due <- struct{}{}:
	default:
	}
}

// open starts the scrapes of an endpoint. The caller holds mu.
func (p *Placer) open(e objects.Engine) {
	ctx, cancel := context.WithCancel(p.running)
	s := &endpointWorker{
		Endpoint: loader.Endpoint{
			Address: e.Address, Host: e.Host, Kind: e.Kind, Management: e.Management, Incarnation: e.Incarnation,
			Token: e.Token, TLS: e.TLS, H2C: e.H2C, HTTP: e.HTTP(), GRPC: e.GRPC(),
		},
		placer: p, adapters: adapters{e.MaxAdapters, e.HostAdapters}, room: e.Room, due: make(chan struct{}, 1),
		runtime: e.Kind == engine.ModelRuntime, unloads: make(map[string]int), terminating: e.Terminating,
	}
	loader, err := loader.Open(s.Endpoint, p.Access, s.answered)
	if err != nil {
		p.Log.Error("cannot load or unload models at the endpoint", "endpoint", e.Address, "err", err)
		cancel()
		return
	}
	loader.Pause(p.paused)
	s.loader = loader
	s.stop = func() { cancel(); _ = loader.Close() }
	p.endpoints[e.Address] = s
	p.work.Go(func() { s.scrapeLoop(ctx) })
}

// scrapeLoop scrapes an engine now, at intervals and when a scrape is requested, until ctx ends.
func (s *endpointWorker) scrapeLoop(ctx context.Context) {
	p := s.placer
	timer := time.NewTimer(0)
	defer timer.Stop()
	quiet := true // false once a failed scrape was logged, until a scrape succeeds
	for {
		afresh := false
		select {
		case <-ctx.Done():
			return
		case <-s.due:
			afresh = true
		case <-timer.C:
		}
		err := s.scrape(ctx, afresh)
		if ctx.Err() != nil {
			return
		}
		p.mu.Lock()
		s.fault = ""
		if err != nil {
			s.fault = err.Error()
		}
		p.observed.scraped(s, err)
		p.mu.Unlock()
		switch {
		case err != nil && quiet:
			p.Log.Warn("cannot scrape the engine; retrying", "endpoint", s.Address, "err", err)
		case err == nil && !quiet:
			p.Log.Info("the engine answers again", "endpoint", s.Address)
		}
		quiet = err == nil
		timer.Reset(p.ScrapeInterval)
	}
}

// scrape scrapes an engine. afresh means that something has happened since the last scrape, such as
// a missing model, so the engine's list of models must be read again.
func (s *endpointWorker) scrape(ctx context.Context, afresh bool) error {
	p := s.placer
	began := time.Now()
	p.mu.Lock()
	record := p.records[s.Address]
	record.Restarted = s.anew
	if s.Kind.Recalled() {
		s.loader.Recall(s.assignedTo())
	}
	p.mu.Unlock()
	limit := scrapeTimeout
	if s.runtime {
		limit = readyTimeout
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last := record
	last.Stale = afresh
	seen, err := s.loader.Scrape(limited, last)
	if ctx.Err() != nil || err != nil && len(s.due) > 0 { // the next scrape starts now, and its result is newer
		return err
	}
	if fault := (*loader.Error)(nil); errors.As(err, &fault) && fault.Outcome == loader.Unreached {
		p.update(func(time.Time) []decide.Action { p.state.Down(s.Address); return nil })
	} else if err != nil {
		p.update(func(time.Time) []decide.Action { p.state.Silent(s.Address); return nil })
	}
	if err != nil {
		return err
	}
	now := loader.Record{Known: true, Incarnation: seen.Incarnation, Limits: seen.Limits}
	if !seen.Lists && now != record {
		if err := p.Memory.PutRuntime(store.Runtime{
			Endpoint: s.Address, Incarnation: seen.Incarnation, Bytes: seen.Limits.Bytes, DefaultBytes: seen.Limits.DefaultBytes,
			Loads: seen.Limits.Loads, LoadTimeout: seen.Limits.LoadTimeout, Methods: seen.Limits.Methods,
			LimitsConcurrency: seen.Limits.LimitsConcurrency,
		}); err != nil {
			return err
		}
	}
	p.update(func(at time.Time) []decide.Action {
		if p.endpoints[s.Address] != s || s.anew && !record.Restarted { // the runtime's record was deleted during the scrape
			if _, known := p.records[s.Address]; !known {
				p.Memory.DeleteRuntime(s.Address)
			}
			return nil
		}
		s.anew, s.kind = false, seen.Kind
		p.records[s.Address] = now
		p.Publisher.SetMethods(s.Address, seen.Limits.Methods)
		p.state.Scraped(scrapeResult(s, seen, began), at)
		return nil
	})
	return nil
}

// assignedTo returns the models of the catalogue that an endpoint was told to load, or will be told
// to. Models that are missing from the catalogue are being removed. The caller holds mu.
func (s *endpointWorker) assignedTo() (all []loader.Model) {
	for _, c := range s.placer.state.CopiesAt(s.Address) {
		if is, there := s.placer.state.Status(c.ModelKey); there {
			all = append(all, modelOf(is.Entry))
		}
	}
	return all
}

// defaultBytes is the default size of a model in a repository, if none is configured (ModelMesh's
// adapters, DEFAULT_MODELSIZE).
const defaultBytes = 1_000_000

// scrapeResult converts the result of a scrape for package decide.
func scrapeResult(s *endpointWorker, seen loader.ScrapeResult, began time.Time) decide.ScrapeResult {
	e := decide.Endpoint{
		Address: s.Address, Lists: seen.Lists, CanLoad: seen.Takes, CanPredict: !seen.Lists,
		Bytes: seen.Limits.Bytes, DefaultBytes: seen.Limits.DefaultBytes, Loads: seen.Limits.Loads, Overlap: seen.Limits.Overlap,
		LoadTimeout: seen.Limits.LoadTimeout, FirstTimeout: seen.Limits.FirstTimeout,
		Incarnation: seen.Incarnation,
	}
	switch {
	case s.Kind.Repository(): // an engine with a model repository does not report limits
		e.Bytes, e.DefaultBytes, e.Slots = s.room.Bytes, cmp.Or(s.room.DefaultBytes, defaultBytes), s.room.Models
		if e.Bytes == 0 {
			e.Slots = max(e.Slots, 1)
		}
	case seen.Limits.Bytes == 0: // the engine loads adapters, and limits their number
		e.GPUAdapters, e.HostAdapters = seen.Limits.Adapters, s.adapters.host
		e.Slots = cmp.Or(s.adapters.most, s.adapters.host, seen.Limits.Adapters, 1)
	}
	l := decide.ScrapeResult{Endpoint: e, Began: began, Purged: seen.Purged, Stopping: seen.Stopping, Doubtful: seen.Doubtful}
	for _, m := range seen.Models {
		switch {
		case m.Base:
			l.BaseModels = append(l.BaseModels, m.ID)
		case m.State == loader.Ready:
			l.Listed = append(l.Listed, m.ID)
		default:
			l.InTransition = append(l.InTransition, m.ID)
		}
	}
	return l
}

// answered logs and records the result of a call to an engine. The loader calls it when a call
// ends.
func (s *endpointWorker) answered(a loader.Answer) {
	p := s.placer
	log := p.Log.With("endpoint", s.Address, "model", a.Model, "took", a.Took.Round(time.Millisecond).String())
	if a.Err != nil {
		log = log.With("outcome", a.Err.Outcome.String(), "words", a.Err.Message)
	}
	p.mu.Lock()
	tries := s.countFailedUnloads(a)
	for _, key := range p.state.At(s.Address, a.Model) {
		p.keepAnswer(key.ModelKey, s.Address, a)
	}
	p.mu.Unlock()
	switch {
	case a.Err == nil && a.Unload:
		log.Info("unloaded a model")
	case a.Err == nil:
		log.Info("loaded a model")
	case !a.Unload:
		log.Warn("cannot load a model")
	case tries&(tries-1) == 0: // log only tries 1, 2, 4, 8 and so on, since control repeats the unload until it succeeds
		log.Warn("cannot unload a model", "tries", tries)
	}
	switch {
	case a.Err == nil:
	case a.Err.Stopping:
		p.update(func(now time.Time) []decide.Action {
			p.state.Stopping(s.Address, now, now)
			return nil
		})
	case !a.Unload && a.Err.Outcome == loader.Unclear && p.running.Err() == nil: // not if this process is ending
		p.update(func(now time.Time) []decide.Action {
			for _, key := range p.state.At(s.Address, a.Model) {
				p.state.LoadFailing(key, a.Err.Message, reasonOf(a.Err), now)
				s.recordState(key)
			}
			return nil
		})
	}
}

// countFailedUnloads returns how many unloads of a model in a row have failed, including this one.
// The caller holds Placer.mu.
func (s *endpointWorker) countFailedUnloads(a loader.Answer) int {
	switch {
	case a.Err == nil:
		delete(s.unloads, a.Model)
	case a.Unload:
		s.unloads[a.Model]++
	}
	return s.unloads[a.Model]
}

// begin starts an action in a new goroutine. The caller holds mu.
func (p *Placer) begin(a decide.Action) {
	s := p.endpoints[a.Endpoint]
	key := decide.CopyKey{ModelKey: a.Model.ModelKey, Endpoint: a.Endpoint}
	if s == nil || p.running == nil || p.running.Err() != nil {
		return
	}
	switch a.Kind {
	case decide.Predict:
		p.work.Go(func() { s.predict(key, a) })
	case decide.Load, decide.Reload:
		ctx, cancel := context.WithCancel(p.running)
		p.cancels[key] = cancel
		p.work.Go(func() {
			defer cancel()
			s.load(ctx, key, a)
		})
	case decide.Cancel:
		if cancel := p.cancels[key]; cancel != nil {
			cancel()
		}
	case decide.Unload:
		if a.Timeout > 0 {
			p.work.Go(func() { s.unloadAgain(key, a.Timeout) })
			return
		}
		p.work.Go(func() { s.unload(key) })
	case decide.Quit:
		for loading, cancel := range p.cancels {
			if loading.Endpoint == a.Endpoint {
				cancel() // also ends the writes that precede the call to the engine
			}
		}
		s.loader.Quit()
	}
}

func modelOf(e objects.Entry) loader.Model {
	return loader.Model{ID: e.ID, Type: e.Type, Source: e.Source, Info: e.Info}
}

func (s *endpointWorker) predict(key decide.CopyKey, a decide.Action) {
	p := s.placer
	ctx, cancel := context.WithTimeout(p.running, predictTimeout)
	defer cancel()
	bytes, _ := s.loader.Predict(ctx, modelOf(a.Model)) // 0 if the engine cannot predict the size
	p.update(func(time.Time) []decide.Action { p.state.Predicted(key, bytes); return nil })
}

func (s *endpointWorker) load(ctx context.Context, key decide.CopyKey, a decide.Action) {
	p := s.placer
	result := s.tryLoad(ctx, key, a)
	if p.running.Err() != nil {
		return // the record of the load remains for the next process
	}
	p.Meter.LoadEnded(result.Took, result.Failed)
	p.update(func(now time.Time) []decide.Action {
		delete(p.cancels, key)
		p.state.LoadEnded(key, result, now)
		s.recordState(key)
		return nil
	})
	switch {
	case result.Unreached:
		p.mu.Lock()
		s.requestScrape()
		p.mu.Unlock()
	case !result.Failed && result.Bytes == 0 && s.runtime:
		s.measure(key)
	}
}

// rememberPause is the time between two attempts to record a load.
const rememberPause = 500 * time.Millisecond

// tryLoad records the load of a model, repeating the attempt until it succeeds, and then loads the
// model.
func (s *endpointWorker) tryLoad(ctx context.Context, key decide.CopyKey, a decide.Action) decide.LoadResult {
	p := s.placer
	err := p.Memory.PutCopy(s.record(key, decide.Loading), true)
	for errors.Is(err, store.ErrNotNow) {
		select {
		case <-time.After(rememberPause):
		case <-ctx.Done():
			return decide.LoadResult{Failed: true, Message: ctx.Err().Error()}
		}
		err = p.Memory.PutCopy(s.record(key, decide.Loading), true)
	}
	if err != nil {
		return decide.LoadResult{Failed: true, Message: "control cannot record the load: " + err.Error()}
	}
	if a.Kind == decide.Reload {
		if err := s.unloadFirst(ctx, key, a.Timeout); err != nil {
			return failed(err)
		}
	}
	if a.Waited > 0 {
		p.Meter.LoadCalled(a.Waited, a.Stalled)
	}
	began := time.Now()
	loaded, err := s.loader.Load(ctx, modelOf(a.Model), a.Timeout)
	result := decide.LoadResult{Bytes: loaded.Bytes, Limit: loaded.Concurrency}
	if err != nil {
		result = failed(err)
	}
	result.Took = time.Since(began)
	return result
}

// unloadFirst unloads what an earlier load may have left of a model, and returns when the unload
// has ended. If the unload takes longer than limit, the time limit of the following load, then
// waiting requests are answered as if the load had failed, and unloadFirst returns an error.
func (s *endpointWorker) unloadFirst(ctx context.Context, key decide.CopyKey, limit time.Duration) error {
	words := fmt.Sprintf("the engine did not unload within %v what an earlier load may have left", limit)
	late := time.AfterFunc(limit, func() {
		s.placer.update(func(now time.Time) []decide.Action {
			s.placer.state.LoadFailing(key, words, decide.LoadFailed, now)
			s.recordState(key)
			return nil
		})
	})
	err := s.loader.Unload(ctx, key.ID)
	if !late.Stop() && err == nil {
		return &loader.Error{Outcome: loader.Refused, Message: words}
	}
	return err
}

// reasons maps engines' load errors to placement's reasons.
var reasons = map[engine.LoadFault]decide.Reason{engine.RankTooLarge: decide.RankTooLarge, engine.FilesMissing: decide.FilesMissing}

// reasonOf returns placement's reason for a failed load; empty if the engine's answer contains
// none.
func reasonOf(e *loader.Error) decide.Reason {
	if e.Transient {
		return decide.LoadRetried
	}
	return reasons[e.Fault]
}

func failed(err error) decide.LoadResult {
	r := decide.LoadResult{Failed: true, Message: err.Error()}
	if fault := (*loader.Error)(nil); errors.As(err, &fault) {
		r.Unreached, r.Left = fault.Outcome == loader.Unreached, fault.Outcome == loader.Unclear
		r.Why = reasonOf(fault)
	}
	return r
}

// measure asks an engine for the size of a loaded model. It is called if the answer to the load did
// not contain the size.
func (s *endpointWorker) measure(key decide.CopyKey) {
	p := s.placer
	ctx, cancel := context.WithTimeout(p.running, sizeTimeout)
	defer cancel()
	bytes, err := s.loader.Size(ctx, key.ID)
	if err != nil {
		return // the copy keeps its assumed size
	}
	p.update(func(time.Time) []decide.Action {
		p.state.Measured(key, bytes)
		s.recordState(key)
		return nil
	})
}

func (s *endpointWorker) unload(key decide.CopyKey) {
	p := s.placer
	began := time.Now()
	if err := p.Memory.PutCopy(s.record(key, decide.Unloading), true); err != nil {
		p.Log.Error("cannot record that a model is about to be unloaded; unloading it", "endpoint", s.Address, "model", key.ID, "err", err)
	}
	err := s.loader.Unload(p.running, key.ID)
	if p.running.Err() != nil {
		return
	}
	p.Meter.UnloadEnded(time.Since(began), err != nil)
	p.update(func(now time.Time) []decide.Action { p.state.UnloadEnded(key, err != nil, now); return nil })
	if err != nil {
		s.requestScrape()
	}
}

// unloadAgain repeats the unload of a model that the engine may still have.
func (s *endpointWorker) unloadAgain(key decide.CopyKey, limit time.Duration) {
	p := s.placer
	ctx, cancel := context.WithTimeout(p.running, limit)
	defer cancel()
	err := s.loader.Unload(ctx, key.ID)
	if p.running.Err() != nil {
		return
	}
	p.update(func(now time.Time) []decide.Action { p.state.UnloadEnded(key, err != nil, now); return nil })
}

// recordState records a copy that is loaded, or whose load failed. The caller holds mu.
func (s *endpointWorker) recordState(key decide.CopyKey) {
	if c, ok := s.placer.state.Copy(key); ok && (c.State == decide.Loaded || c.Failed()) {
		_ = s.placer.Memory.PutCopy(s.recordOf(c), false)
	}
}

func (s *endpointWorker) record(key decide.CopyKey, state decide.CopyState) store.Copy {
	p := s.placer
	p.mu.Lock()
	defer p.mu.Unlock()
	c, _ := p.state.Copy(key)
	c.CopyKey, c.State = key, state
	return s.recordOf(c)
}

func (s *endpointWorker) recordOf(c decide.Copy) store.Copy {
	p := s.placer
	var e objects.Entry
	if known := p.declared[c.ModelKey]; known != nil {
		e = *known
	} else if m := p.registered[c.ModelKey]; m != nil {
		e = objects.EntryOf(m)
	}
	return store.Copy{
		Endpoint: s.Address, Pool: c.Pool.String(), ID: c.ID, State: stateOf(c).String(), Bytes: c.Bytes,
		Size:        decide.SizeSources[c.Source],
		Concurrency: c.Limit,
		Incarnation: p.records[s.Address].Incarnation, Since: c.Since, Listed: !s.runtime && !s.Kind.Recalled(),
		Object: e.Object, UID: e.UID,
	}
}
