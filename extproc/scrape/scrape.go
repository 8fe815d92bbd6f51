// Package scrape reads every endpoint periodically and reports to the fleet: the load from the
// engine's metrics page, and less often the list of models. An engine that has neither also gets
// requests; its load and models are then unknown.
//
// Each endpoint has one goroutine. A hash of the endpoint's address determines when in the interval
// the endpoint is scraped, which distributes scrapes evenly. An endpoint that nothing uses is
// scraped once a second; the first request there ends that.
package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/hash"
)

const (
	// DefaultInterval is the time between two scrapes of the load of an endpoint in use.
	DefaultInterval = 200 * time.Millisecond
	// DefaultModelsInterval is the time between two scrapes of an endpoint's models.
	DefaultModelsInterval = time.Second
	// timeout is the maximum duration of one scrape. A busy engine answers late, and a late answer
	// is better than none.
	timeout = time.Second
	// dueGap is the minimum time between two requested scrapes. Clients that ask for unknown models
	// must not keep engines busy.
	dueGap = 20 * time.Millisecond
)

// Config configures a Scraper.
type Config struct {
	Fleet          *fleet.Fleet
	Interval       time.Duration // time between two scrapes of the load of one endpoint in use
	ModelsInterval time.Duration // time between two scrapes of one endpoint's models
	Log            *slog.Logger
	// Scraped is called with the result of each scrape, nil for success. Scraped may be nil.
	Scraped func(error)
	// Access contains the tokens and TLS configuration for access to engines.
	Access engineclient.Access
	// Transport replaces the network in tests; nil means the network.
	Transport http.RoundTripper
}

// Scraper scrapes endpoints. Create it with [New], run it with [Scraper.Run], and set its endpoints
// with [Scraper.SetTargets].
type Scraper struct {
	Config
	client  http.Client
	direct  bool          // whether connections need no net/http; see plainly
	buffers *buffers      // for pages of all endpoints
	targets chan []Target // capacity 1: the latest targets, until Run receives them; never closed

	mu    sync.Mutex       // guards loops
	loops map[string]*loop // loops of the targets, by address
}

// New returns a Scraper with no targets.
func New(c Config) *Scraper {
	if c.Scraped == nil {
		c.Scraped = func(error) {}
	}
	direct := c.Transport == nil
	if direct {
		c.Transport = c.Access.Transport(30 * time.Second)
	}
	s := &Scraper{Config: c, direct: direct, buffers: newBuffers(), targets: make(chan []Target, 1), loops: make(map[string]*loop)}
	s.client = http.Client{Transport: c.Transport, Timeout: timeout, CheckRedirect: engineclient.Stay}
	c.Fleet.Use.Notify(s.used)
	return s
}

// SetTargets sets the endpoints to scrape. Endpoints that remain are scraped without interruption.
// SetTargets must not be called concurrently with itself.
func (s *Scraper) SetTargets(targets []Target) {
	select {
	case <-s.targets: // drops outdated targets
	default:
	}
	s.targets <- targets
}

// Due requests an immediate scrape of an endpoint's models, because they seem to have changed. It
// ignores unknown endpoints and never blocks.
func (s *Scraper) Due(address string) {
	if l := s.loopOf(address); l != nil {
		notify(l.asked)
	}
}

// used ends the long intervals of an idle endpoint, because a request begins there. It ignores
// unknown endpoints and never blocks.
func (s *Scraper) used(address string) {
	if l := s.loopOf(address); l != nil && l.idle.CompareAndSwap(true, false) {
		notify(l.began)
	}
}

// loopOf returns the loop of an endpoint; nil if the endpoint is unknown.
func (s *Scraper) loopOf(address string) *loop {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loops[address]
}

// notify sends a value to a channel of capacity 1, unless it has one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run scrapes the targets until ctx ends, and returns after the last scrape.
func (s *Scraper) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	defer s.client.CloseIdleConnections()
	defer loops.Wait()
	stop := make(map[Target]context.CancelFunc)
	for {
		var targets []Target
		select {
		case <-ctx.Done():
			for _, cancel := range stop {
				cancel()
			}
			return nil
		case targets = <-s.targets:
		}
		wanted := make(map[Target]bool, len(targets))
		for _, target := range targets {
			wanted[target] = true
			if stop[target] != nil {
				continue
			}
			own, cancel := context.WithCancel(ctx)
			stop[target] = cancel
			l := &loop{
				Scraper: s, Target: target, pages: engine.Pages(target.Kind), hash: hash.Of(target.Address), plain: s.plainly(target),
				asked: make(chan struct{}, 1), began: make(chan struct{}, 1),
			}
			l.search.pages = len(l.pages)
			s.mu.Lock()
			s.loops[target.Address] = l
			s.mu.Unlock()
			loops.Go(func() { l.run(own) })
		}
		for target, cancel := range stop {
			if !wanted[target] {
				cancel()
				delete(stop, target)
			}
		}
		s.forget(wanted)
	}
}

// forget deletes the state of targets that are not in wanted.
func (s *Scraper) forget(wanted map[Target]bool) {
	addresses := make(map[string]bool, len(wanted))
	for target := range wanted {
		addresses[target.Address] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.loops, func(address string, _ *loop) bool { return !addresses[address] })
}

// loop scrapes one endpoint. Only one goroutine uses it, except for idle and the channels.
type loop struct {
	*Scraper
	Target
	pages []engine.Page // pages that may be the metrics page; empty if the engine has no pages
	hash  uint64        // hash of the address
	asked chan struct{} // receives a value when the models are due
	began chan struct{} // receives a value when a request begins at an idle endpoint
	idle  atomic.Bool   // whether the loop waits as for an idle endpoint, so that a request must wake it

	plain    bool                   // whether pages are read over conns instead of net/http
	refused  bool                   // whether a response of this engine was left to net/http
	conns    [2]*conn               // kept connections; nil for none
	requests map[engine.Page][]byte // requests with the token sent
	sent     string

	search      search // search for the metrics page among pages
	at          int    // index in pages of the page to read next
	loadMissing bool   // whether it was logged that no page has a load
	reader      engine.Reader
	modelsAt    time.Time // start of the last scrape that read the list; if zero, the models are due
	down        bool      // whether the last scrape failed
	answered    bool      // whether any scrape succeeded
}

// run scrapes at once, and then once in each interval at the endpoint's own offset.
func (l *loop) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer l.disconnect()
	var began, until time.Time // start of the last scrape; planned start of the next one
	wait := func(end time.Time) {
		until = end
		timer.Reset(time.Until(end))
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-l.began:
			if due := l.plan(true); due.Before(until) {
				wait(due)
			}
			continue
		case <-l.asked:
			l.modelsAt = time.Time{}
			if earliest := began.Add(dueGap); time.Now().Before(earliest) {
				wait(earliest)
				continue
			}
		}
		l.idle.Store(false)
		began = time.Now()
		err := l.scrape(ctx)
		if ctx.Err() != nil {
			return
		}
		l.Scraped(err)
		l.note(err)
		wait(l.plan(false))
	}
}

// plan returns when the next scrape is due. If used is true, the endpoint counts as in use.
func (l *loop) plan(used bool) time.Time {
	now := time.Now()
	soon := next(now, l.Interval, l.hash)
	if l.down { // the endpoint is silent since the failed scrape was due
		return soon
	}
	rarely := soon
	if !used {
		rarely = next(now, idleEvery(l.Interval, l.ModelsInterval), l.hash)
		l.idle.Store(true) // first, so that a request that Plan does not see yet finds it
	}
	var due time.Time
	var idle bool
	l.Fleet.Update(fleet.Later, func(s *endpointstate.State, _ time.Time) { due, idle = s.Schedule.Plan(l.Address, soon, rarely) })
	if !idle {
		l.idle.Store(false)
	}
	return due
}

// note logs that an endpoint does not answer the first scrape, and when it does so at last. Later
// the fleet logs the changes of its state.
func (l *loop) note(err error) {
	switch {
	case l.answered:
	case err != nil && !l.down:
		l.Log.Warn("endpoint has not answered yet", "endpoint", l.Address, "err", err)
	case err == nil && l.down:
		l.Log.Info("endpoint answers", "endpoint", l.Address)
	}
	l.down, l.answered = err != nil, l.answered || err == nil
}

// scrape reads the models if they are due, then the load. The load is last because it makes the
// endpoint available again, and the models may have changed during an outage. A metrics page at
// another port does not show whether the endpoint's own port works; in that case the models are
// read in every scrape.
func (l *loop) scrape(ctx context.Context) error {
	look, began := l.Fleet.Scrape(l.Address), time.Now()
	if len(l.pages) == 0 {
		return l.knock(ctx, look)
	}
	l.at = l.search.next(began)
	if l.elsewhere() || listDue(began, l.modelsAt, l.Interval, l.ModelsInterval) {
		if err := l.models(ctx, look); err != nil {
			return l.failed(look, err)
		}
		l.modelsAt = began
	}
	load, err := l.load(ctx)
	if err != nil {
		return l.failed(look, err)
	}
	look.Succeeded(load)
	return nil
}

// knock scrapes an engine that has no pages. Such an engine is healthy if it accepts a connection.
func (l *loop) knock(ctx context.Context, look fleet.Scrape) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", l.Address)
	if err != nil {
		return l.failed(look, err)
	}
	_ = conn.Close()
	look.Listed(engine.Models{Unlisted: true})
	look.Succeeded(engine.Load{Kind: l.Kind})
	return nil
}

// failed records a failed scrape. A refused, reset or closed connection means that no engine is
// there. After any other error, the engine may be busy.
func (l *loop) failed(look fleet.Scrape, err error) error {
	l.modelsAt = time.Time{}
	l.Fleet.Update(fleet.Later, func(s *endpointstate.State, now time.Time) { endpointstate.Faulted(s, l.Address, faultOf(err, now)) })
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
		l.Fleet.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) {
			s.Refused(l.Address, now)
			if errors.Is(err, syscall.ECONNREFUSED) {
				s.ProcessEnded(l.Address, now)
			}
		})
		l.search, l.refused = search{pages: len(l.pages)}, false // the next engine there may be of another kind
	} else {
		look.Failed()
	}
	return err
}

// faultOf returns the error of a failed scrape.
func faultOf(err error, now time.Time) endpointstate.Fault {
	f := endpointstate.Fault{At: now, Kind: "scrape_error"}
	status, answered := errors.AsType[errStatus](err)
	var slow interface{ Timeout() bool }
	switch {
	case answered:
		f.Status = int(status)
	case errors.Is(err, syscall.ECONNREFUSED):
		f.Kind = "scrape_refused"
	case errors.As(err, &slow) && slow.Timeout():
		f.Kind = endpointstate.ScrapeTimeout
	}
	return f
}

// elsewhere reports whether the metrics page is at another port than the endpoint.
func (l *loop) elsewhere() bool { return l.where(l.pages[l.at]) != l.where(modelsPage) }

// load reads the metrics page that the search selects. If the engine has no metrics, its load is
// unknown.
func (l *loop) load(ctx context.Context) (engine.Load, error) {
	is, err := l.get(ctx, l.pages[l.at])
	defer l.buffers.put(is.buffer)
	var load engine.Load
	if err == nil && is.media != "application/json" { // JSON is the format of trtllm-serve's /metrics
		load, err = l.reader.Load(is.body, l.Kind)
	}
	var answer string
	if status, ok := errors.AsType[errStatus](err); ok {
		answer = status.Error()
	} else if err == nil {
		answer = "a page of " + is.media
	}
	answered := err == nil || absent(err)
	if answered || l.elsewhere() {
		err = nil
	}
	if l.search.record(load.Kind != "", answered, answer, time.Now()) && err == nil && !l.loadMissing {
		l.Log.Warn("cannot find load metrics on the endpoint; picking without its load", "endpoint", l.Address, "engine", l.Kind)
		l.loadMissing = true
	}
	return load, err
}

// models reads the list of models. If the engine has no list, its models are unknown. After an
// invalid answer, the previous list remains valid.
func (l *loop) models(ctx context.Context, look fleet.Scrape) error {
	is, err := l.get(ctx, modelsPage)
	defer l.buffers.put(is.buffer)
	if absent(err) {
		look.Listed(engine.Models{Unlisted: true})
		l.search.lists(err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	models, err := engine.ReadModels(is.body)
	if err != nil {
		return err
	}
	look.Listed(models)
	l.search.lists(fmt.Sprint(models))
	return nil
}
