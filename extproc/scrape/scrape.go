// Package scrape looks at every endpoint, again and again, and tells the fleet what it sees: the load from the engine's
// metrics page, and beside it, slower, the models that the engine answers to.
//
// Each endpoint has one goroutine with a place of its own in the interval, by the hash of its address, so that looks are
// spread evenly and the same endpoint is always looked at in the same phase.
package scrape

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/internal/engine"
)

const (
	// DefaultInterval is between two looks at an endpoint's load.
	DefaultInterval = 200 * time.Millisecond
	// DefaultModelsInterval is between two looks at its models.
	DefaultModelsInterval = time.Second
	// timeout bounds one look. An engine that is busy answers late, and late news is better than none.
	timeout = time.Second
	// maxPage bounds what an engine may answer. A page of vLLM has 50 to 80 KB.
	maxPage = 16 << 20
)

// Config is what a Scraper needs.
type Config struct {
	Fleet          *fleet.Fleet
	Interval       time.Duration // between looks at the load of one endpoint
	ModelsInterval time.Duration // between looks at its models
	Log            *slog.Logger
	// Looked is told of each look with its result, nil if it was answered. It may be nil.
	Looked func(error)
	// Transport is how engines are reached; nil means plain HTTP.
	Transport http.RoundTripper
}

// Scraper looks at endpoints. Make one with [New], run it with [Scraper.Run], and tell it whom to look at with
// [Scraper.SetTargets].
type Scraper struct {
	Config
	client  http.Client
	targets chan []string // capacity 1: the latest set that Run has not taken; never closed
}

// New returns a Scraper with no targets.
func New(c Config) *Scraper {
	if c.Looked == nil {
		c.Looked = func(error) {}
	}
	if c.Transport == nil {
		c.Transport = &http.Transport{
			DialContext: (&net.Dialer{Timeout: timeout}).DialContext,
			// One connection an endpoint for the load and one for the models. Compression would cost the engine more
			// than it saves the wire.
			MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
		}
	}
	s := &Scraper{Config: c, targets: make(chan []string, 1)}
	s.client = http.Client{Transport: c.Transport, Timeout: timeout, CheckRedirect: sameHost}
	return s
}

// sameHost follows redirects, which older vLLM answers /metrics with, but never away from the endpoint.
func sameHost(r *http.Request, via []*http.Request) error {
	if len(via) > 3 || r.URL.Host != via[0].URL.Host {
		return errors.New("redirected away from the endpoint")
	}
	return nil
}

// SetTargets says which endpoints to look at from now on. Those that stay are not disturbed. It is not safe for
// concurrent use with itself.
func (s *Scraper) SetTargets(addresses []string) {
	select {
	case <-s.targets: // not taken yet: out of date
	default:
	}
	s.targets <- addresses
}

// Run looks at the targets until ctx ends, and returns when every look is over.
func (s *Scraper) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	defer s.client.CloseIdleConnections()
	defer loops.Wait()
	stop := make(map[string]context.CancelFunc)
	for {
		var addresses []string
		select {
		case <-ctx.Done():
			for _, cancel := range stop {
				cancel()
			}
			return nil
		case addresses = <-s.targets:
		}
		wanted := make(map[string]bool, len(addresses))
		for _, address := range addresses {
			wanted[address] = true
			if stop[address] != nil {
				continue
			}
			own, cancel := context.WithCancel(ctx)
			stop[address] = cancel
			l := &loop{Scraper: s, address: address}
			loops.Go(func() { l.run(own) })
		}
		for address, cancel := range stop {
			if !wanted[address] {
				cancel()
				delete(stop, address)
			}
		}
	}
}

// loop looks at one endpoint. It is owned by one goroutine.
type loop struct {
	*Scraper
	address string

	reader   engine.Reader
	page     []byte    // kept from look to look
	modelsAt time.Time // of the last good look at the models; zero makes the next one due
	down     bool      // the last look failed
}

// run looks at once, and then in the endpoint's own phase of the interval.
func (l *loop) run(ctx context.Context) {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(l.address))
	phase := time.Duration(hash.Sum64() % uint64(l.Interval))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		err := l.look(ctx)
		if ctx.Err() != nil {
			return
		}
		l.Looked(err)
		l.note(err)
		sincePhase := time.Duration(time.Now().UnixNano()-int64(phase)) % l.Interval
		timer.Reset(l.Interval - sincePhase)
	}
}

// note logs when an endpoint goes silent and when it answers again, not each look.
func (l *loop) note(err error) {
	switch {
	case err != nil && !l.down:
		l.Log.Warn("endpoint does not answer", "endpoint", l.address, "err", err)
	case err == nil && l.down:
		l.Log.Info("endpoint answers again", "endpoint", l.address)
	}
	l.down = err != nil
}

// look reads the models where that is due, then the load. The load comes last: it is what makes an endpoint a candidate
// again, and after a failure its models may be others.
func (l *loop) look(ctx context.Context) error {
	look := l.Fleet.Look(l.address)
	if time.Since(l.modelsAt) >= l.ModelsInterval {
		if err := l.models(ctx); err != nil {
			return l.failed(look, err)
		}
		l.modelsAt = time.Now()
	}
	load, err := l.load(ctx)
	if err != nil {
		return l.failed(look, err)
	}
	look.Saw(load)
	return nil
}

// failed tells the fleet of a look without an answer. A connection that was turned away or reset means that nobody is
// there; anything else may be a busy engine.
func (l *loop) failed(look fleet.Look, err error) error {
	l.modelsAt = time.Time{}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
		l.Fleet.Refused(l.address)
	} else {
		look.Failed()
	}
	return err
}

// errStatus is an answer other than 200.
type errStatus int

func (e errStatus) Error() string { return fmt.Sprintf("the engine answers %d", int(e)) }

// load reads the metrics page. An engine that has none is there all the same: its load is unknown.
func (l *loop) load(ctx context.Context) (engine.Load, error) {
	page, err := l.get(ctx, "/metrics")
	var status errStatus
	if errors.As(err, &status) && (status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented) {
		return engine.Load{}, nil
	}
	if err != nil {
		return engine.Load{}, err
	}
	return l.reader.Load(page, "")
}

// models reads the list of models. An engine that answers without one keeps the list that it gave before.
func (l *loop) models(ctx context.Context) error {
	body, err := l.get(ctx, "/v1/models")
	if err != nil {
		return err
	}
	models, err := engine.ReadModels(body)
	if err != nil {
		return err
	}
	l.Fleet.SetModels(l.address, models)
	return nil
}

// get returns the body of a page. It is valid until the next get.
func (l *loop) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.address+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "text/plain;version=0.0.4, application/json")
	response, err := l.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxPage))
		return nil, fmt.Errorf("GET %s: %w", path, errStatus(response.StatusCode))
	}
	l.page, err = readAll(l.page[:0], response.Body)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	return l.page, nil
}

// readAll appends what r has to dst, up to maxPage.
func readAll(dst []byte, r io.Reader) ([]byte, error) {
	for {
		if len(dst) == cap(dst) {
			dst = append(dst, 0)[:len(dst)]
		}
		n, err := r.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		switch {
		case errors.Is(err, io.EOF):
			return dst, nil
		case err != nil:
			return dst, err
		case len(dst) > maxPage:
			return dst, fmt.Errorf("the page has more than %d bytes", maxPage)
		}
	}
}
