package llm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/internal/listen"
)

// EventsHelp explains the event log in --help.
const EventsHelp = `The event log has a line of JSON for each event of a model, for tests:

  time     RFC 3339 with nanoseconds
  engine   HOST:PORT of the engine
  event    load, loaded: start and end of a load; unload, unloaded: start and end of an unload.
           purge: the engine unloaded all models at once (modelruntime only).
           crowded: a request exceeded the concurrency limit and was rejected (modelruntime only)
  model    id of the model
  error    of loaded and unloaded: the error, if it failed
  seconds  of loaded and unloaded: the duration
  models   of purge: the number of models
`

// Event is a line of the event log: see EventsHelp.
type Event struct {
	Time    time.Time `json:"time"`
	Engine  string    `json:"engine"`
	Event   string    `json:"event"`
	Model   string    `json:"model,omitempty"`
	Error   string    `json:"error,omitempty"`
	Seconds float64   `json:"seconds,omitempty"`
	Models  int       `json:"models,omitempty"`
}

// Events writes an event log. A nil *Events writes nothing. It is safe for concurrent use.
type Events struct {
	engine string
	mu     sync.Mutex // guards out
	out    io.Writer
}

// NewEvents returns an event log of the engine with an address.
func NewEvents(out io.Writer, engine string) *Events { return &Events{engine: engine, out: out} }

// Serving has the flags that all simulated engines share: the address to serve at, and the event
// log.
type Serving struct {
	Host, EventLog string
	Port           int
	UDS            string // path of a Unix socket, which replaces Host and Port; empty for none
}

// AddFlags adds the flags of Serving to those of a command.
func (s *Serving) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&s.Host, "host", "127.0.0.1", "serve at this `ADDRESS`")
	f.IntVar(&s.Port, "port", 8000, "serve at this `PORT`; 0 picks a free one")
	f.StringVar(&s.UDS, "uds", "", "serve at this Unix socket, a `PATH`, instead of --host and --port")
	f.StringVar(&s.EventLog, "event-log", "", "append an event for each load and unload to this `FILE`; - is standard output")
}

func (s *Serving) listener(ctx context.Context) (net.Listener, error) {
	if s.UDS != "" {
		return listen.On("uds", "unix:"+s.UDS)
	}
	var config net.ListenConfig
	return config.Listen(ctx, "tcp", net.JoinHostPort(s.Host, strconv.Itoa(s.Port)))
}

// Listen opens the listener and the event log. The log is nil if --event-log is not set.
func (s *Serving) Listen(ctx context.Context) (net.Listener, *Events, error) {
	l, err := s.listener(ctx)
	if err != nil || s.EventLog == "" {
		return l, nil, err
	}
	log := os.Stdout
	if s.EventLog != "-" {
		if log, err = os.OpenFile(s.EventLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("--event-log: %w", err), l.Close())
		}
	}
	return l, NewEvents(log, l.Addr().String()), nil
}

// Write sets the time and the engine of an event, and writes it to the log.
func (e *Events) Write(event Event) {
	if e == nil {
		return
	}
	event.Time, event.Engine = time.Now(), e.engine
	line, err := json.Marshal(event)
	if err != nil {
		panic(err) // cannot happen: texts and numbers always encode
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.out.Write(append(line, '\n')); err != nil {
		slog.Warn("cannot write the event log", "err", err)
	}
}

// Begin logs the start of an operation on a model. It returns a function that logs its end, with
// the failure or "" for success.
func (e *Events) Begin(event, ended, model string) func(failure string) {
	began := time.Now()
	e.Write(Event{Event: event, Model: model})
	return func(failure string) {
		e.Write(Event{Event: ended, Model: model, Error: failure, Seconds: time.Since(began).Seconds()})
	}
}
