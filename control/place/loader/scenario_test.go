package loader

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/headgate/simulated/runtime"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/test/golden"
)

// Each block of a file under testdata is a scenario between a Loader and a simulated engine, on a
// fake clock: the input is the actions with their times; the output is the engine's own log, the
// answers that the Loader received, and its results.
//
//	engine KIND [load=T] [startup=T] [concurrency=N]
//	                                   vllm, sglang or modelruntime; vLLM and SGLang load for T
//	T load ID [timeout=T] [path=PATH]  the default timeout is 10s
//	T cancel ID                        the context of the load of ID ends
//	T unload ID
//	T look                             a scrape with the record of the last one
//	T kill, T start                    the engine dies; another one starts in its place
//	T restart [forgotten]              control restarts, with its record or without
//	T held                             prints the models of the engine
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		return func(input string) (output string) {
			synctest.Test(t, func(t *testing.T) { output = play(t, strings.Split(input, "\n")) })
			return output
		}
	})
}

// scenario is the state of a running scenario.
type scenario struct {
	*testing.T
	start   time.Time
	kind    engine.Kind
	options map[string]string
	site    *site
	loader  *Loader
	record  Record
	calls   sync.WaitGroup
	life    int // incarnation of the engine, from 1
	end     func()
	held    func() []string

	mu      sync.Mutex // guards the fields below
	cancels map[string]context.CancelFunc
	lines   []line
	events  bytes.Buffer
}

// line is one line of the output, an event. Simultaneous events are sorted by rank, then by model
// id, since the order of events of different models is random.
type line struct {
	at   time.Duration
	rank int
	id   string
	text string
}

// describe prints what an engine reports about a loaded model.
func describe(l Loaded) string {
	if l.Concurrency > 0 {
		return fmt.Sprintf("%d bytes, takes %d at once", l.Bytes, l.Concurrency)
	}
	return fmt.Sprintf("%d bytes", l.Bytes)
}

const address = "192.0.2.1:8000"

func play(t *testing.T, script []string) string {
	s := &scenario{T: t, start: time.Now(), cancels: map[string]context.CancelFunc{}, site: &site{}}
	head := strings.Fields(script[0])
	s.kind, s.options = engine.Kind(head[1]), options(head[2:])
	s.startEngine()
	s.open()
	if s.kind == engine.ModelRuntime {
		s.look() // the first load needs an earlier scrape
	}
	for _, text := range script[1:] {
		words := strings.Fields(text)
		time.Sleep(s.duration(words[0]) - time.Since(s.start))
		synctest.Wait()
		s.do(words[1], words[2:])
		synctest.Wait()
	}
	s.calls.Wait()
	synctest.Wait()
	if err := s.loader.Close(); err != nil {
		t.Error(err)
	}
	s.kill()
	synctest.Wait()
	s.readEvents()
	slices.SortStableFunc(s.lines, func(a, b line) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.rank, b.rank), cmp.Compare(a.id, b.id))
	})
	var out strings.Builder
	for _, l := range s.lines {
		fmt.Fprintf(&out, "%-7s %s\n", l.at, l.text)
	}
	return out.String()
}

func options(words []string) map[string]string {
	set := map[string]string{}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		set[key] = value
	}
	return set
}

func (s *scenario) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.Fatal(err)
	}
	return d
}

func (s *scenario) note(rank int, id, format string, args ...any) {
	at := time.Since(s.start).Round(time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line{at, rank, id, fmt.Sprintf(format, args...)})
}

func (s *scenario) do(verb string, args []string) {
	var id string
	if len(args) > 0 {
		id = args[0]
	}
	switch verb {
	case "load":
		o := options(args[1:])
		timeout := s.duration(cmp.Or(o["timeout"], "10s"))
		_, path, _ := strings.Cut(strings.Join(args, " "), "path=")
		ctx, cancel := context.WithCancel(s.Context())
		s.mu.Lock()
		s.cancels[id] = cancel
		s.mu.Unlock()
		s.calls.Go(func() {
			defer cancel()
			loaded, err := s.loader.Load(ctx, Model{ID: id, Type: "lora", Source: cmp.Or(path, "sim:")}, timeout)
			s.note(3, id, "load %s returns: %s", id, said(err, describe(loaded)))
		})
	case "cancel":
		s.cancels[id]()
	case "unload":
		s.calls.Go(func() { s.note(3, id, "unload %s returns: %s", id, said(s.loader.Unload(s.Context(), id), "done")) })
	case "look":
		s.calls.Go(s.look)
	case "kill":
		s.note(0, "", "the engine is killed")
		s.kill()
	case "start":
		s.note(0, "", "an engine starts")
		s.startEngine()
	case "restart":
		if err := s.loader.Close(); err != nil {
			s.Error(err)
		}
		s.calls.Wait()
		if id == "forgotten" {
			s.record = Record{}
		}
		s.open()
	case "held":
		s.note(4, "", "the engine holds %v", s.held())
	default:
		s.Fatalf("what is %q?", verb)
	}
}

// said prints the result of a call.
func said(err error, done string) string {
	if failure := faultOf(err); failure != nil {
		return failure.Outcome.String() + ": " + failure.Message
	}
	return done
}

func (s *scenario) look() {
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	seen, err := s.loader.Scrape(ctx, s.record)
	if err != nil {
		s.note(3, "", "look returns: %s", said(err, ""))
		return
	}
	s.record = Record{Known: true, Incarnation: seen.Incarnation, Limits: seen.Limits}
	var listed []string
	for _, m := range seen.Models {
		if !m.Base {
			listed = append(listed, m.ID)
		}
	}
	s.note(3, "", "look returns: %q, lists %v %v, purged %v, %+v", seen.Incarnation, seen.Lists, listed, seen.Purged, seen.Limits)
}

// open opens the Loader, as control does when it starts.
func (s *scenario) open() {
	e := Endpoint{Address: address, Kind: s.kind}
	if s.kind == engine.ModelRuntime {
		e.Management = "unix:/run/runtime.sock"
	}
	l, err := Open(e, engineclient.Access{Dial: s.site.dial}, func(a Answer) {
		what := "load"
		if a.Unload {
			what = "unload"
		}
		done := "done"
		if a.Err != nil {
			done = said(a.Err, "")
		}
		s.note(2, a.Model, "heard: %s %s: %s", what, a.Model, done)
	})
	if err != nil {
		s.Fatal(err)
	}
	if r, ok := l.driver.(*modelRuntime); ok {
		r.peer = func(net.Conn) string { return fmt.Sprintf("process %d", s.life) }
	}
	s.loader = l
}

// startEngine starts a simulated engine at the scenario's address.
func (s *scenario) startEngine() {
	s.life++
	listener := s.site.listen()
	ctx, cancel := context.WithCancel(context.Background())
	var over sync.WaitGroup
	if s.kind == engine.ModelRuntime {
		c := runtime.Config{
			Capacity: 1 << 30, DefaultSize: 50 << 20, LoadingThreads: 2, LoadTimeout: time.Minute,
			Events: llm.NewEvents(s, ""),
		}
		if text := s.options["startup"]; text != "" {
			c.Startup = s.duration(text)
		}
		c.Concurrency, _ = strconv.Atoi(s.options["concurrency"])
		r := runtime.New(c)
		over.Go(func() { _ = runtime.Serve(ctx, r, (&site{}).listen(), listener) })
		s.held = r.Models
	} else {
		p := llm.DefaultProfile()
		p.AdapterLoad = profile.Spread{Mean: s.duration(cmp.Or(s.options["load"], "2s")).Seconds()}
		server, err := llm.New(llm.Config{Kind: s.kind, Profile: p, Listener: listener, Events: llm.NewEvents(s, "")})
		if err != nil {
			s.Fatal(err)
		}
		over.Go(func() { _ = server.Run(ctx) })
		s.held = func() []string {
			models, err := s.loader.driver.(*adapters).list(s.Context())
			if err != nil {
				s.Error(err)
			}
			return models.Adapters
		}
	}
	s.end = func() { cancel(); over.Wait() }
}

// kill ends the engine and all of its connections at once.
func (s *scenario) kill() {
	s.site.close()
	s.end()
}

// Write receives the engine's event log.
func (s *scenario) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events.Write(p)
}

// readEvents converts the engine's event log to lines.
func (s *scenario) readEvents() {
	for d := json.NewDecoder(&s.events); d.More(); {
		var e llm.Event
		if err := d.Decode(&e); err != nil {
			s.Fatal(err)
		}
		text := "engine: " + e.Event
		if e.Model != "" {
			text += " " + e.Model
		}
		if e.Error != "" {
			text += ": " + e.Error
		}
		if e.Event == "purge" {
			text += fmt.Sprintf(" of %d", e.Models)
		}
		s.lines = append(s.lines, line{e.Time.Sub(s.start).Round(time.Millisecond), 1, e.Model, text})
	}
}
