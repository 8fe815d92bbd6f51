package loader

import (
	"bytes"
	"cmp"
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

	"github.com/tidwall/gjson"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
)

const (
	// askTimeout limits the question whether an engine is stopping. The answer takes a few
	// milliseconds, unless the engine is very busy.
	askTimeout = time.Second
	// minPoll and maxPoll are the shortest and longest interval between polls of the model list
	// after a call. An engine may list a model only a moment after it has answered, because it has
	// several frontend processes or is still loading the model for an earlier call. The interval
	// doubles after each poll.
	minPoll, maxPoll = 50 * time.Millisecond, time.Second
	// unlisted is how many lists in a row, read maxPoll apart, may lack a model that the engine
	// reported as loaded. After that, the load has failed.
	unlisted = 3
	// adapterTimeout is the time limit for loading an adapter until control has measured some
	// loads. An adapter takes less than a second from local files, and half a minute per gigabyte
	// from object storage.
	adapterTimeout = time.Minute
)

// api is the HTTP API of a kind of engine for LoRA adapters. Both calls send the adapter's name in
// the field lora_name; a load also sends the source in lora_path. An agent reads the field storage
// and removes it: see [storageOf].
type api struct {
	load, unload string // HTTP paths of the calls
	absent       string // advice in the error if the engine lacks these paths
	// tokenize is the path of a call that counts the tokens of a text. An engine that is stopping
	// refuses this call even for an empty text. It is empty if the engine has no such path.
	tokenize string
	// overlap is how many loads may run at once if some are slow; 0 means only one.
	overlap int
}

// apis are the APIs of the kinds of engines that can load adapters. vLLM's was recorded from
// version 0.32.0; SGLang's follows its documentation and was not tested with a real engine.
var apis = map[engine.Kind]api{
	engine.VLLM: {
		"/v1/load_lora_adapter", "/v1/unload_lora_adapter",
		// 4 loads can overlap, since vLLM has one lock per adapter
		"start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment", "/tokenize", 4,
	},
	engine.SGLang: {"/load_lora_adapter", "/unload_lora_adapter", "start SGLang with --enable-lora", "", 0}, // one lock for all adapters
}

// adapters is the driver for engines with an HTTP API for LoRA adapters, and for engines that
// cannot load models. It keeps no state about models, since the engine lists them.
type adapters struct {
	unsized
	caller
	told atomic.Value // engine.Kind that a metrics page shows, if none is configured
	owns atomic.Value // engine.Kind that the list of models shows
}

func openAdapters(e Endpoint, a engineclient.Access) *adapters {
	return &adapters{caller: newCaller(e, a)}
}

// kind returns the engine's kind; empty if it is unknown. Its metrics page decides before its list
// of models.
func (d *adapters) kind() engine.Kind {
	owns, _ := d.owns.Load().(engine.Kind)
	return cmp.Or(d.stated(), owns)
}

// stated returns the kind that is configured, or that a metrics page shows.
func (d *adapters) stated() engine.Kind {
	told, _ := d.told.Load().(engine.Kind)
	return cmp.Or(d.Kind, told)
}

// Scrape reads the list of models and the metrics page. These engines need no preparation before
// they load models.
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
		// While an engine loads an adapter, it runs no inference steps, so two concurrent loads
		// finish no sooner than two successive ones (vLLM 0.32.0).
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

// Load calls the engine, and then waits until the engine lists the model. It relies on the list,
// because engines answer load calls differently.
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
	fields := map[string]string{"lora_name": m.ID, "lora_path": m.Source}
	if storage := storageOf(m); storage != "" {
		fields["storage"] = storage
	}
	said, err := d.post(ctx, a.load, fields)
	if err != nil {
		return Loaded{}, err
	}
	switch {
	case said.done():
		return Loaded{}, d.await(ctx, m.ID, true, unlisted, said)
	case said.status == http.StatusBadRequest && strings.Contains(said.words, "already"):
		// The model is loaded already, or is still being loaded for an earlier call.
		return Loaded{}, d.await(ctx, m.ID, true, 0, said)
	case said.status == http.StatusBadRequest:
		if models, err := d.list(ctx); err == nil && slices.Contains(models.Adapters, m.ID) {
			return Loaded{}, nil
		}
	}
	return Loaded{}, d.refusal(said, a)
}

// storageOf returns a model's JSON for the agent, which fetches the source with these credentials
// and parameters; empty if the model names none.
func storageOf(m Model) string {
	if gjson.Get(m.Info, "storage_key").Exists() || gjson.Get(m.Info, "storage_params").Exists() {
		return m.Info
	}
	return ""
}

// Unload calls the engine. If the engine then does not list the model, the unload has succeeded,
// whatever the engine answered.
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

// await waits until the engine lists the model, or no longer lists it if listed is false. If most
// is above 0, await gives up once it has polled at the longest interval, maxPoll, that many times.
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

// stopping asks the engine whether it is stopping, since neither its model list nor its metrics
// show that. About 10 ms after SIGTERM, vLLM starts to refuse any request with text to tokenize. If
// a load is sent after SIGTERM or just before it, vLLM may never answer it, and then its process
// does not end, whether the client disconnects or not (vLLM 0.32.0 with --shutdown-timeout 15). The
// result is false if the engine has no path to tokenize, or is too busy to answer.
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
	if d.kind() == "" {
		if _, err := d.list(ctx); err != nil {
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

// readAnswer finds the message in a response. vLLM puts it into the object "error"; older versions
// put it at the top level; if the request is not authorized, "error" is a string. SGLang uses the
// fields error_message and success. For an unknown path, engines answer with the field detail.
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

// reading contains reusable buffers, because with a thousand engines control reads hundreds of
// pages of 50 to 100 kB per second.
type reading struct {
	body bytes.Buffer
	engine.Reader
}

var readings = sync.Pool{New: func() any { return new(reading) }}

// list reads the list of models. If the engine has no list, the result is marked as unlisted.
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
	if models.Kind != "" {
		d.owns.Store(models.Kind)
	}
	return models, nil
}

// metrics reads the first metrics page that contains load metrics. If no kind is configured, it
// detects the engine's kind from that page. The result is empty if there is no such page.
func (d *adapters) metrics(ctx context.Context) (engine.Load, error) {
	r := readings.Get().(*reading)
	defer readings.Put(r)
	for _, page := range engine.Pages(d.stated()) {
		found, media, err := d.get(ctx, page, &r.body)
		if err != nil && page.Port == 0 {
			return engine.Load{}, err
		}
		if !found || media == "application/json" { // trtllm-serve's /metrics is JSON
			continue
		}
		load, err := r.Load(r.body.Bytes(), d.stated())
		if err == nil && load.Kind != "" {
			d.told.Store(load.Kind)
			return load, nil
		}
	}
	return engine.Load{}, nil
}

// get reads a page of the engine into body. It returns whether the engine has the page, and the
// page's media type.
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
