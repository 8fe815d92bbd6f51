package stream_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// process is an extproc whose requests wait in virtual time.
type process struct {
	*testing.T
	objects *objects.Set
	fleet   *fleet.Fleet
	flow    *flow.Flow
	server  *stream.Server
	client  extprocv3.ExternalProcessorClient
}

// processIn returns an extproc of Headgate's own Envoy or of another gateway. Its endpoints get at
// most this many requests at a time. The functions change its objects and its configuration; they
// may be nil.
func processIn(t *testing.T, front stream.Front, requests int, edit func(*objects.Set), change func(*stream.Config)) *process {
	t.Helper()
	p := &process{T: t}
	p.fleet = newFleetWith(fleet.Config{Published: func(v *endpointstate.View) {
		if p.flow != nil {
			p.flow.Published(v)
		}
	}, Freed: func(address, model string) { p.flow.Freed(address, model) }}, func(s *objects.Set) {
		if p.objects = s; edit != nil {
			edit(s)
		}
	})
	p.flow = flow.New(flow.Config{View: p.fleet.View, MaxQueued: 100, MaxBytes: 1 << 20, Alone: true})
	p.server, _ = newServer(t, p.fleet, func(c *stream.Config) {
		c.Flow, c.Settings.RequestsPerEndpoint = p.flow, requests
		if change != nil {
			change(c)
		}
	})
	p.client = dialServer(t, p.server, front)
	return p
}

// edit changes the objects.
func (p *process) edit(change func(*objects.Set)) {
	change(p.objects)
	p.fleet.SetWorld(objects.Build(*p.objects))
}

// pending is a request, and the answers to it.
type pending struct {
	p       *process
	end     context.CancelFunc
	answers <-chan *extprocv3.ProcessingResponse
}

// send sends the messages of a request, and returns when extproc has nothing more to do now.
func (p *process) send(lines ...string) pending {
	p.Helper()
	ctx, end := context.WithCancel(p.Context())
	s, err := p.client.Process(ctx)
	if err != nil {
		p.Fatal(err)
	}
	for _, line := range lines {
		if err := s.Send(message(p, line)); err != nil {
			p.Fatal(err)
		}
	}
	answers := make(chan *extprocv3.ProcessingResponse, 10)
	go func() {
		defer close(answers)
		for {
			m, err := s.Recv()
			if err != nil {
				return
			}
			answers <- m
		}
	}()
	synctest.Wait()
	return pending{p, end, answers}
}

// ask sends a request for a model.
func (p *process) ask(model string) pending {
	p.Helper()
	return p.send("headers :method=POST :path=/v1/completions", `body {"model":"`+model+`"}`)
}

// decision returns the answer that decides the request; empty while it waits.
func (s pending) decision() string {
	s.p.Helper()
	synctest.Wait()
	for {
		select {
		case m, ok := <-s.answers:
			if !ok {
				return "the stream has ended"
			}
			if m.GetImmediateResponse() != nil || m.GetDynamicMetadata() != nil {
				return render(s.p.T, m)
			}
		default:
			return ""
		}
	}
}

// expect checks the answer that decides a request: a part of it, or "" while it waits.
func (s pending) expect(what, want string) {
	s.p.Helper()
	if got := s.decision(); !strings.Contains(got, want) || want == "" && got != "" {
		s.p.Errorf("%s gets %q, want %q", what, got, want)
	}
}

// waiting checks how many requests wait.
func (p *process) waiting(want int64) {
	p.Helper()
	synctest.Wait()
	if n, _ := p.flow.Queued(); n != want {
		p.Errorf("%d requests wait, want %d", n, want)
	}
}
