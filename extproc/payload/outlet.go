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
	// workers is how many payloads are on their way to one sink, as in ModelMesh. Those of one
	// request take the same way, so that they come in order.
	workers = 2
	// patience is how long a sink may take for one.
	patience = 10 * time.Second
	// quiet is how long the log says nothing of what is dropped, once it has.
	quiet = time.Minute
)

// The reasons, beside those of package sink, for which a sink does not get a payload.
const (
	full   = "queue"  // too many wait
	failed = "failed" // it does not take it
)

// outlet is the way to a sink.
type outlet struct {
	sink   sink.Sink
	queues []chan *parcel
	client *http.Client
	token  func() string
	meter  *metrics.Meter
	log    *slog.Logger

	mu      sync.Mutex // guards the following
	dropped map[string]int
	told    time.Time // when the log had them last
}

func newOutlet(k sink.Sink, c Config, client *http.Client) *outlet {
	o := &outlet{sink: k, client: client, token: c.Token, meter: c.Meter, log: c.Log, dropped: make(map[string]int)}
	for i := range workers {
		o.queues = append(o.queues, make(chan *parcel, (c.Queue+i)/workers))
	}
	return o
}

// newClient returns what calls sinks. No redirection is followed: a sink's user data are for nobody
// else.
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

// put puts a payload into the queue of its request, if there is room.
func (o *outlet) put(p *parcel, turn uint64) {
	select {
	case o.queues[turn%workers] <- p:
	default:
		p.release()
		o.drop(full, nil)
	}
}

// close says that nothing is put any more.
func (o *outlet) close() {
	for _, q := range o.queues {
		close(q)
	}
}

// work sends what is in a queue until that is closed and empty.
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
	r.GetBody = func() (io.ReadCloser, error) { // for a connection that its sink closed before it was used
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
	_, _ = io.CopyN(io.Discard, answer.Body, 1<<16) // so that the connection can be used again
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("it answers %s", answer.Status)
	}
	return nil
}

// drop counts a payload that the sink does not get, and has the log say so now and then. Err says
// more, nil for nothing.
func (o *outlet) drop(reason string, err error) {
	o.meter.PayloadDropped(reason)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropped[reason]++
	if time.Since(o.told) < quiet {
		return
	}
	o.told = time.Now()
	more := []any{"sink", o.sink.String()}
	for reason, n := range o.dropped {
		more = append(more, reason, n)
	}
	if err != nil {
		more = append(more, "err", err)
	}
	clear(o.dropped)
	o.log.Warn("copies of requests or answers are dropped", more...)
}
