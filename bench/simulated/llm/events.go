package llm

import (
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
)

// EventsHelp explains the event log in --help.
const EventsHelp = `The event log has a line of JSON for each event of a model, for tests:

  time     RFC 3339 with nanoseconds
  engine   HOST:PORT of the engine
  event    load, loaded: start and end of a load; unload, unloaded: start and end of an unload;
           purge: the engine unloaded all models at once (modelruntime only)
           crowded: a request was rejected because of the concurrency limit (modelruntime only)
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

// Events writes an event log. The nil Events writes none. It is safe for concurrent use.
type Events struct {
	engine string
	mu     sync.Mutex // guards out
	out    io.Writer
}

// NewEvents returns the log of the engine at an address.
func NewEvents(out io.Writer, engine string) *Events { return &Events{engine: engine, out: out} }

// OpenEvents opens a log file for appending; "-" is standard output, and "" is no log.
func OpenEvents(file string) (io.WriteCloser, error) {
	switch file {
	case "":
		return nil, nil
	case "-":
		return keptOpen{os.Stdout}, nil
	}
	return os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
}

// keptOpen is a file that is not closed, because others use it.
type keptOpen struct{ *os.File }

func (keptOpen) Close() error { return nil }

// Write adds an event with the time and the engine.
func (e *Events) Write(event Event) {
	if e == nil {
		return
	}
	event.Time, event.Engine = time.Now(), e.engine
	line, err := json.Marshal(event)
	if err != nil {
		panic(err) // texts and numbers always encode
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.out.Write(append(line, '\n')); err != nil {
		slog.Warn("cannot write the event log", "err", err)
	}
}

// Begin logs the start of a call about a model and returns a function that logs its end with the
// failure, "" for success.
func (e *Events) Begin(event, ended, model string) func(failure string) {
	began := time.Now()
	e.Write(Event{Event: event, Model: model})
	return func(failure string) {
		e.Write(Event{Event: ended, Model: model, Error: failure, Seconds: time.Since(began).Seconds()})
	}
}
