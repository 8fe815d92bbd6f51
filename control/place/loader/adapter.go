package loader

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
)

const (
	// askTimeout limits the question whether an engine is stopping. The answer takes a few
	// milliseconds, unless the engine is very busy.
	askTimeout = time.Second
	// minPoll and maxPoll are the shortest and longest interval between polls of the model list
	// after a call. An engine may list a model only a moment after its answer: it has several front
	// ends, or still loads the model for an earlier call. The interval doubles each time.
	minPoll, maxPoll = 50 * time.Millisecond, time.Second
	// unlisted is the number of lists in a row, maxPoll apart, that may lack a model although the
	// engine answered that it loaded it. Then the load has failed.
	unlisted = 3
	// adapterTimeout limits the load of an adapter until some loads were measured: an adapter takes
	// less than a second from local files, and half a minute per gigabyte from object storage.
	adapterTimeout = time.Minute
)

// api is the HTTP API of a kind of engine for LoRA adapters. Both calls have the adapter's name in
// lora_name, and a load has the source in lora_path.
type api struct {
	load, unload string // paths
	absent       string // advice for an engine without these paths
	// tokenize is a path for counting the tokens of an empty text, which an engine that is stopping
	// refuses; empty if there is none.
	tokenize string
	// overlap is the number of concurrent loads if some are slow; 0 means one after the other.
	overlap int
}

// apis are the kinds of engines that can load adapters. vLLM's is recorded from 0.32.0; SGLang's
// follows its documentation and was not tried with a real engine.
var apis = map[engine.Kind]api{
	engine.VLLM: {
		"/v1/load_lora_adapter", "/v1/unload_lora_adapter",
		// it has a lock per adapter
		"start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment", "/tokenize", 4,
	},
	engine.SGLang: {"/load_lora_adapter", "/unload_lora_adapter", "start SGLang with --enable-lora", "", 0}, // it has one lock for all
}

// adapters is the driver of an engine with an HTTP API for LoRA adapters, or without any. It has no
// state about models, since the engine lists them.
type adapters struct {
	unsized
	caller
	told atomic.Value // engine.Kind found on a metrics page, if none is configured
}

func openAdapters(e Endpoint, a engineclient.Access) *adapters {
	return &adapters{caller: newCaller(e, a)}
}

// kind returns the engine's kind, if known.
func (d *adapters) kind() engine.Kind {
	if told, ok := d.told.Load().(engine.Kind); ok && d.Kind == "" {
		return told
	}
	return d.Kind
}

// Scrape reads the list of models and the metrics page. These engines need not be made ready.
func (d *adapters) Scrape(ctx context.Context, _ Record) (ScrapeResult, error) {
	models, err := d.list(ctx)
	if err != nil {
		return ScrapeResult{}, err
	}
	load, err := d.metrics(ctx)
	if err != nil {
		return ScrapeResult{}, err
	}
	a, takes := apis[d.kind()]
	s := ScrapeResult{Kind: d.kind(), Takes: takes, Incarnation: d.Incarnation, Lists: !models.Unlisted}
	if started, known := load.Started.Get(); known && s.Incarnation == "" {
		s.Incarnation = "process of " + strconv.FormatFloat(started, 'f', -1, 64)
	}
	if takes {
		s.Stopping = d.stopping(ctx, a)
		// An engine that loads an adapter pauses its steps, so two loads at once end no sooner
		// (vLLM 0.32.0).
		s.Limits = Limits{Adapters: int(load.MaxAdapters.Or(0)), Loads: 1, Overlap: a.overlap, FirstTimeout: adapterTimeout}
	}
	for _, id := range models.Base {
		s.Models = append(s.Models, Listed{ID: id, Base: true})
	}
	for _, id := range models.Adapters {
		s.Models = append(s.Models, Listed{ID: id})
	}
	return s, nil
}

// Load calls the engine, and then waits until it lists the model: the answers of engines differ,
// but their lists do not.
func (d *adapters) Load(ctx context.Context, m Model) (Loaded, error) {
	if err := engine.CheckName(m.ID); err != nil {
		return Loaded{}, fault(Refused, fmt.Sprintf("cannot load a model called %q: %v", m.ID, err))
	}
	a, err := d.api(ctx)
	if err != nil {
		return Loaded{}, err
	}
	if d.stopping(ctx, a) {
		return Loaded{}, &Error{Outcome: Refused, Message: "the engine is stopping", Stopping: true}
	}
	said, err := d.post(ctx, a.load, map[string]string{"lora_name": m.ID, "lora_path": m.Source})
	if err != nil {
		return Loaded{}, err
	}
	switch {
	case said.done():
		return Loaded{}, d.await(ctx, m.ID, true, unlisted, said)
	case said.status == http.StatusBadRequest && strings.Contains(said.words, "already"):
		// It is loaded, or still loading for an earlier call.
		return Loaded{}, d.await(ctx, m.ID, true, 0, said)
	case said.status == http.StatusBadRequest:
		if models, err := d.list(ctx); err == nil && slices.Contains(models.Adapters, m.ID) {
			return Loaded{}, nil
		}
	}
	return Loaded{}, d.refusal(said, a)
}

// Unload calls the engine. A model that the engine does not list counts as unloaded, whatever the
// answer.
func (d *adapters) Unload(ctx context.Context, id string) error {
	a, err := d.api(ctx)
	if err != nil {
		return err
	}
	said, err := d.post(ctx, a.unload, map[string]string{"lora_name": id})
	if err != nil {
		return err
	}
	if said.done() {
		return d.await(ctx, id, false, 0, said)
	}
	models, err := d.list(ctx)
	switch {
	case err != nil:
		return err
	case models.Unlisted && said.known || !models.Unlisted && !slices.Contains(models.Adapters, id):
		return nil
	}
	return d.refusal(said, a)
}

// await waits until the engine lists the model, or no longer lists it. With most above 0, it gives
// up after that many lists that were read maxPoll after the one before.
func (d *adapters) await(ctx context.Context, id string, listed bool, most int, said answer) error {
	late := 0
	for pause := minPoll; ; pause = min(2*pause, maxPoll) {
		models, err := d.list(ctx)
		switch {
		case err != nil:
			return fault(Unclear, fmt.Sprintf("the engine answered %v, but its list is unreadable: %v", said, err))
		case models.Unlisted || slices.Contains(models.Adapters, id) == listed:
			return nil
		case most > 0 && late == most:
			return fault(Unclear, fmt.Sprintf("the engine answered %v, but %d lists since do not have the model", said, most))
		}
		if pause == maxPoll {
			late++
		}
		if !wait(ctx, pause) {
			return fault(Unclear, fmt.Sprintf("the engine answered %v, but its list says otherwise: %v", said, ctx.Err()))
		}
	}
}

// stopping asks the engine whether it is stopping, which neither its list nor its pages show. From
// some 10 ms after SIGTERM, vLLM refuses any request with text to tokenize. It may never answer a
// load sent after SIGTERM or just before it, and then its process does not end, whether its client
// disconnects or not (vLLM 0.32.0 with --shutdown-timeout 15). The result is false for an engine
// without such a path, or one that is too busy to answer.
func (d *adapters) stopping(ctx context.Context, a api) bool {
	if a.tokenize == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	said, err := d.post(ctx, a.tokenize, map[string]string{"prompt": ""})
	return err == nil && said.stopping()
}

// api returns the API of the engine's kind.
func (d *adapters) api(ctx context.Context) (api, error) {
	if d.kind() == "" {
		if _, err := d.metrics(ctx); err != nil {
			return api{}, err
		}
	}
	switch a, ok := apis[d.kind()]; {
	case ok:
		return a, nil
	case d.kind() == "":
		return api{}, fault(Refused,
			fmt.Sprintf("cannot tell what kind of engine this is: label its pods %s, or set spec.engine of its EndpointList",
				engine.KindLabel))
	default:
		return api{}, fault(Refused, fmt.Sprintf("engines of the kind %s cannot load models while they run", d.kind()))
	}
}

// refusal converts an unsuccessful answer to an Error. If the answer is not in an engine's error
// format, for example from a proxy or after a crash, the outcome is unclear.
func (d *adapters) refusal(said answer, a api) *Error {
	outcome, words := Unclear, said.String()
	switch {
	case said.status == http.StatusNotFound && !said.known:
		outcome, words = Refused, words+": it has no such path: "+a.absent
	case said.status == http.StatusUnauthorized || said.status == http.StatusForbidden:
		outcome, words = Refused, words+": "+engineclient.WantsToken
	case said.status == http.StatusRequestTimeout:
	case said.status/100 == 3:
		outcome, words = Refused, words+": a redirect, which is not followed"
	case said.stopping():
		refused := fault(Refused, words)
		refused.Stopping = true
		return refused
	case said.status/100 == 4, said.known && (said.status == http.StatusInternalServerError ||
		said.status == http.StatusServiceUnavailable):
		outcome = Refused
	}
	refused := fault(outcome, words)
	refused.Fault = engine.ReadLoadFault(said.words)
	refused.Transient = isTransient(said.status) && refused.Fault == engine.UnknownFault
	return refused
}

// answer is an engine's response to a call.
type answer struct {
	status int
	words  string
	known  bool // the message is in an engine's error format
	failed bool // the body reports a failure, whatever the status
}

func (a answer) stopping() bool {
	_, is := engine.Elsewhere(a.status, false, []byte(a.words))
	return is
}

func (a answer) done() bool { return a.status == http.StatusOK && !a.failed }

func (a answer) String() string {
	if a.words == "" {
		return strconv.Itoa(a.status)
	}
	return fmt.Sprintf("%d: %s", a.status, a.words)
}

// readAnswer finds the message in a response. vLLM has it in an object error, older versions at the
// top level, and in a text error if the request is not authorized. SGLang has error_message and
// success. Paths that the engine does not have answer with detail.
func readAnswer(status int, body []byte) answer {
	var said struct {
		Error        json.RawMessage `json:"error"`
		Object       string          `json:"object"`
		Message      string          `json:"message"`
		Success      *bool           `json:"success"`
		ErrorMessage string          `json:"error_message"`
	}
	a := answer{status: status, words: strings.TrimSpace(string(body))}
	if json.Unmarshal(body, &said) != nil {
		return a
	}
	var inner struct {
		Message string `json:"message"`
	}
	switch {
	case json.Unmarshal(said.Error, &inner) == nil && inner.Message != "":
		a.words, a.known = inner.Message, true
	case json.Unmarshal(said.Error, &a.words) == nil && a.words != "":
		a.known = true
	case said.Object == "error" && said.Message != "":
		a.words, a.known = said.Message, true
	case said.Success != nil:
		a.known, a.failed = true, !*said.Success
		if said.ErrorMessage != "" || !a.failed {
			a.words = said.ErrorMessage
		}
	}
	return a
}

// reading has reusable buffers for reading pages: with a thousand engines, hundreds of pages of 50
// to 100 kB are read per second.
type reading struct {
	body bytes.Buffer
	engine.Reader
}

var readings = sync.Pool{New: func() any { return new(reading) }}

// list reads the list of models. An engine without a list has unknown models.
func (d *adapters) list(ctx context.Context) (engine.Models, error) {
	r := readings.Get().(*reading)
	defer readings.Put(r)
	found, _, err := d.get(ctx, engine.Page{Path: "/v1/models"}, &r.body)
	if err != nil {
		return engine.Models{}, err
	}
	if !found {
		return engine.Models{Unlisted: true}, nil
	}
	models, err := engine.ReadModels(r.body.Bytes())
	if err != nil {
		return engine.Models{}, fault(Unclear, err.Error())
	}
	return models, nil
}

// metrics reads the first metrics page with load metrics, and finds the engine's kind by it if none
// is configured. An engine without such a page has no metrics.
func (d *adapters) metrics(ctx context.Context) (engine.Load, error) {
	r := readings.Get().(*reading)
	defer readings.Put(r)
	for _, page := range engine.Pages(d.kind()) {
		found, media, err := d.get(ctx, page, &r.body)
		if err != nil && page.Port == 0 {
			return engine.Load{}, err
		}
		if !found || media == "application/json" { // trtllm-serve's /metrics
			continue
		}
		load, err := r.Load(r.body.Bytes(), d.kind())
		if err == nil && load.Kind != "" {
			d.told.Store(load.Kind)
			return load, nil
		}
	}
	return engine.Load{}, nil
}

// get reads the body of a page, and returns its media type, and whether the engine has the page.
func (d *adapters) get(ctx context.Context, page engine.Page, body *bytes.Buffer) (found bool, media string, err error) {
	is, err := d.ask(ctx, call{method: http.MethodGet, address: objects.AtPort(d.managedAt(), page.Port), path: page.Path}, body)
	if err != nil {
		return false, "", err
	}
	switch is.status {
	case http.StatusOK:
		media, _, _ = mime.ParseMediaType(is.header.Get("Content-Type"))
		return true, media, nil
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return false, "", nil
	}
	said := answerTo(is, body.Bytes())
	return false, "", fault(d.refusal(said, api{}).Outcome, fmt.Sprintf("GET %s: the engine answers %v", page.Path, said))
}
