package payload

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/payload/sink"
)

const (
	// workers is the number of concurrent posts to one sink, as in ModelMesh. One worker sends all
	// payloads of a request, so they arrive in order.
	workers = 2
	// patience is the maximum duration of one post to a sink.
	patience = 10 * time.Second
	// quiet is the minimum time between two log lines about dropped payloads of one sink.
	quiet = time.Minute
)

// Reasons why a sink does not get a payload, in addition to those of package sink.
const (
	full   = "queue"  // the queue of the sink is full
	failed = "failed" // the post to the sink failed
)

// outlet sends payloads to one sink.
type outlet struct {
	sink   sink.Sink
	queues []chan *parcel
	client *http.Client
	token  func() string
	meter  *metrics.Meter
	log    *slog.Logger

	mu       sync.Mutex // guards the fields below
	dropped  map[string]int
	loggedAt time.Time // time when dropped was last logged
}

func newOutlet(k sink.Sink, c Config, client *http.Client) *outlet {
	o := &outlet{sink: k, client: client, token: c.Token, meter: c.Meter, log: c.Log, dropped: make(map[string]int)}
	for i := range workers {
		o.queues = append(o.queues, make(chan *parcel, (c.Queue+i)/workers))
	}
	return o
}

// newClient returns the HTTP client for sinks. It follows no redirects: payloads contain user data,
// which only the configured sink may get.
func newClient(config *tls.Config) *http.Client {
	return &http.Client{
		Timeout: patience,
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: patience / 2}).DialContext, TLSClientConfig: config, ForceAttemptHTTP2: true,
			MaxIdleConnsPerHost: workers, IdleConnTimeout: time.Minute, DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// put queues a payload for the worker that sends the payloads of its request, or drops it if the
// queue is full.
func (o *outlet) put(p *parcel, turn uint64) {
	select {
	case o.queues[turn%workers] <- p:
	default:
		p.release()
		o.drop(full, nil)
	}
}

// close ends the queues. No put may follow it.
func (o *outlet) close() {
	for _, q := range o.queues {
		close(q)
	}
}

// work sends the payloads in a queue until the queue is closed and empty.
func (o *outlet) work(ctx context.Context, queue chan *parcel) {
	for p := range queue {
		err := o.send(ctx, p.Payload)
		p.release()
		if err != nil {
			o.drop(failed, err)
			continue
		}
		o.meter.PayloadSent()
	}
}

func (o *outlet) send(ctx context.Context, p *sink.Payload) error {
	if o.sink.URL == nil {
		o.log.Info("payload", "id", p.ID, "modelid", p.Model, "vModelId", p.VModel, "method", p.Method, "kind", p.Kind, "status", p.Status,
			"bytes", len(p.Data))
		return nil
	}
	body, size := p.Body()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, o.sink.URL.String(), body)
	if err != nil {
		return err
	}
	r.ContentLength = size
	r.GetBody = func() (io.ReadCloser, error) { // lets the client retry after the sink closed an idle connection
		again, _ := p.Body()
		return io.NopCloser(again), nil
	}
	r.Header.Set("Content-Type", "application/json")
	if o.token != nil {
		r.Header.Set("Authorization", "Bearer "+o.token())
	}
	answer, err := o.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, 1<<16) // so that the connection can be reused
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("the sink answered %s", answer.Status)
	}
	return nil
}

// drop counts a payload that the sink does not get. It logs the counts at most once per quiet. err
// may be nil.
func (o *outlet) drop(reason string, err error) {
	o.meter.PayloadDropped(reason)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropped[reason]++
	if time.Since(o.loggedAt) < quiet {
		return
	}
	o.loggedAt = time.Now()
	more := []any{"sink", o.sink.String()}
	for reason, n := range o.dropped {
		more = append(more, reason, n)
	}
	if err != nil {
		more = append(more, "err", err)
	}
	clear(o.dropped)
	o.log.Warn("dropped copies of requests or answers for a sink", more...)
}
