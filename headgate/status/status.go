// Package status implements the command "headgate status": it prints the endpoints as the pickers
// (extprocs) see them, where control has loaded models, and which objects have false conditions.
package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/display"
	"github.com/headgate/headgate/internal/query"
)

const usage = `headgate status prints the state of each endpoint as the picker (extproc) sees it, and where models are loaded. It asks control,
which asks all connected extprocs. Without control, it asks one extproc. Arguments and flags select pools, endpoints and models.

  Endpoints  one line for each endpoint. Those that get few or no requests come first, with the reason and what to do. If
             extprocs disagree, the line shows the worst state, and a line for each extproc follows. Then the models:
               base       the names of the base model.
               loaded     serves requests ("3 in flight" counts the requests that run now).
               loading    since when, and the reason of the load. Reasons from requests are queued requests (requests), too
                          much load (load), an endpoint with little load (balance), and a second copy of a model in use (use).
                          Others are the minimum number of copies (least), a migrating endpoint (migration) and free room
                          (room).
               queued     waits for its load here, behind other loads or until another model is evicted.
               draining   gets no new requests; control unloads it when its running requests have ended.
               unloading  the engine is unloading it.
             Without control, "adapters" lists the adapters that the engine serves.
  Waiting    requests that wait in extprocs, by pool, priority band and reason. The reason is endpoint (none may get
             requests), copy (the model is not loaded, or its copies are at their limit), room (no engine can start
             them) or turn (others go first).
  Pools      from control: the number of endpoints, models, copies and requests queued for models, and the share of free room.
             All models with a request within the WARM WINDOW are loaded or loading.
  Models     models with too few copies, with their queued requests, the longest wait, and the reason. Failed loads follow,
             with the engine's message and the time of the next attempt. A model that is given as MODEL is always printed.
  VModels    VModels that do not serve their target yet, and why. MODEL selects the VModels with this id, and those whose
             target is this model.
  Objects    objects with a condition that is False, with its reason and message.

STATE is the state of an endpoint, and FOR the time since it entered the state:
  healthy    gets requests
  suspect    its last request failed, or its queue was full: it gets few requests until one succeeds
  stale      it has not answered scrapes for a second: it gets requests that no better endpoint can serve
  draining   headgate drain drains it, or its pod is being deleted: it serves models that have no copy elsewhere yet
  lost       it has not answered scrapes for 10 seconds: it gets requests only if all endpoints are lost
  out        it gets no requests
If no extproc has the endpoint, STATE is the state that control observes, such as starting, ready or down.

FLIGHT is the number of requests that all extprocs have at the endpoint. From the last scrape, RUN and WAIT are the requests in
the engine's batch and in its queue, and KV is the share of its KV cache in use. SLOTS is the number of adapters with requests,
and of adapter slots. 1ST TOKEN is the predicted time to first token of a request with 256 tokens for the base model. LAST ERROR
has the HTTP status and the error's type, without its message. The lines below an endpoint show its pod and its models. They
also show the adapter slots or bytes in use, and how many loads run and may run at once.

The exit status is 0 if the tables were printed, whatever they show, and 1 if neither control nor extproc answered. headgate
doctor fails if something is wrong. control and extproc answer on loopback only, at their --metrics-port. In a cluster, forward
a port to the pod of the leader, or run the command inside it:

  kubectl port-forward -n headgate-system "pod/$(kubectl get lease headgate-control -n headgate-system -o jsonpath='{.spec.holderIdentity}')" 9091

Usage:

  headgate status [flags] [MODEL...]

Examples:

  headgate status -w                            print the tables again every second
  headgate status --pool default/llama --all
  headgate status --endpoint 10.0.0.7:8000
  headgate status a01 a02                       print where two models are loaded, and why not elsewhere
  headgate status -o json a01

`

// watchInterval is the time between two outputs of --watch.
const watchInterval = time.Second

// Command is the command "status". It prints to out.
func Command(ctx context.Context, args []string, out io.Writer) error {
	var c choice
	var at query.Addresses
	fs := cli.Flags("headgate status", usage, out)
	fs.Group("What to print")
	fs.StringVar(&c.pool, "pool", "", "print only this InferencePool, `NAMESPACE/NAME`")
	fs.StringVar(&c.endpoint, "endpoint", "", "print only the endpoint `HOST:PORT`, and the models that are loaded or failed to load there")
	all := fs.Bool("all", false,
		fmt.Sprintf("print all endpoints and models instead of the first %d of each, and all copies of an endpoint instead of %d in each state", maxRows,
			maxCopies))
	format := fs.StringP("output", "o", "table", "output `FORMAT`: table, or json, which always prints everything selected")
	watch := fs.BoolP("watch", "w", false, "print again every second until interrupted; on a terminal, replace the last output")
	fs.Group("Where to ask")
	at.Register(fs.FlagSet)
	if err := cli.Parse(fs, args, math.MaxInt); err != nil {
		return err
	}
	c.models = fs.Args()
	if *format != "table" && *format != "json" {
		return fs.Wrong(fmt.Errorf("-o %q: want table or json", *format))
	}
	if err := at.Check(); err != nil {
		return fs.Wrong(err)
	}
	printed := func() (string, error) {
		s, err := ask(ctx, at)
		if err != nil {
			return "", err
		}
		return c.print(s, *format == "json", *all, *watch)
	}
	if *watch {
		return watching(ctx, out, printed)
	}
	text, err := printed()
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, text)
	return err
}

// watching prints the result of printed each second, until ctx ends. On a terminal it prints over
// the last output.
func watching(ctx context.Context, out io.Writer, printed func() (string, error)) error {
	file, is := out.(*os.File)
	terminal := is && term.IsTerminal(int(file.Fd())) //nolint:gosec // file descriptors are small
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for first := true; ; first = false {
		text, err := printed()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			text = err.Error() + "\n"
		}
		switch {
		case terminal && first:
			text = "\x1b[2J\x1b[H" + text
		case terminal: // go to the top, and erase what is left of each line and below
			text = "\x1b[H" + strings.ReplaceAll(text, "\n", "\x1b[K\n") + "\x1b[J"
		case !first:
			text = "\n" + text
		}
		if _, err := io.WriteString(out, text); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// State is everything that the command prints, as JSON with -o json.
type State struct {
	// Extprocs are the extprocs, and the endpoints as they see them.
	Extprocs []Extproc `json:"extprocs"`
	// Placement is where control has loaded models; nil without control.
	Placement *decide.View `json:"placement,omitempty"`
	// Conditions are the conditions of objects that are False; nil without control.
	Conditions []admin.Condition `json:"conditions,omitempty"`
	// Notes say what is missing, and why.
	Notes []string `json:"notes,omitempty"`
}

// Extproc is the answer of one extproc.
type Extproc struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	// Error says why there are no endpoints; empty if there are.
	Error string `json:"error,omitempty"`
	admin.EndpointsResult
}

// ask asks control and extproc.
func ask(ctx context.Context, at query.Addresses) (s State, err error) {
	var without error // why there is no placement
	if at.Control != "" {
		s.Placement = new(decide.View)
		if without = query.JSON(ctx, http.MethodGet, at.Control, "/placement", nil, s.Placement); without != nil {
			s.Placement = nil
		}
		if _, silent := errors.AsType[query.Silent](without); silent {
			at.Control = "" // extproc answers without it
		}
	}
	answers, err := at.Ask(ctx, admin.Endpoints, nil)
	switch {
	case err != nil && s.Placement == nil:
		return s, err
	case err != nil:
		s.Notes = append(s.Notes, "extproc: "+err.Error())
	case answers.Instead != nil && s.Placement != nil:
		s.Notes = append(s.Notes, answers.Note())
	}
	for _, a := range answers.Extprocs {
		e := Extproc{Name: a.Extproc, Version: a.Version, Error: a.Error}
		if e.Error == "" {
			if err := json.Unmarshal(a.Result, &e.EndpointsResult); err != nil {
				e.Error = fmt.Sprintf("it is another version of Headgate: its answer cannot be read (%v)", err)
			}
		}
		s.Extprocs = append(s.Extprocs, e)
		if e.Omitted > 0 {
			s.Notes = append(s.Notes, fmt.Sprintf("extproc %s has too many endpoints: its list omits %d", e.Name, e.Omitted))
		}
		if e.Error != "" {
			s.Notes = append(s.Notes, fmt.Sprintf("extproc %s: %s", e.Name, e.Error))
		}
	}
	_, nobody := errors.AsType[query.Nobody](without)
	switch {
	case s.Placement != nil:
		if err := query.JSON(ctx, http.MethodGet, at.Control, "/conditions", nil, &s.Conditions); err != nil {
			s.Notes = append(s.Notes, "conditions of objects are unknown: "+err.Error())
		}
	case nobody:
		s.Notes = append(s.Notes, "no control at "+at.Control+": models are as the engines list them")
	case without != nil:
		s.Notes = append(s.Notes, "where control has loaded models is unknown: "+without.Error())
	}
	return s, nil
}

// print formats the selected part of a State.
func (c choice) print(s State, asJSON, all, watch bool) (string, error) {
	var copies map[key][]at
	if s.Placement != nil {
		copies = copiesOf(*s.Placement)
	}
	s, err := c.of(s)
	if err != nil {
		return "", err
	}
	if asJSON {
		var text bytes.Buffer
		e := json.NewEncoder(&text)
		if !watch {
			e.SetIndent("", "  ")
		}
		err := e.Encode(s)
		return text.String(), err
	}
	return newPage(s, c, all, copies).text(), nil
}

// choice selects what to print.
type choice struct {
	pool, endpoint string   // empty: all pools or endpoints
	models         []string // ids of models; none: those with too few copies
}

// of returns the selected part of a State. It is an error to select something that does not exist.
func (c choice) of(s State) (State, error) {
	known := s
	s.Extprocs = slices.Clone(s.Extprocs)
	if s.Placement != nil {
		v, err := c.ofView(*s.Placement, known)
		if err != nil {
			return s, err
		}
		s.Placement = &v
	} else if err := c.exists(known); err != nil {
		return s, err
	}
	shown := make(map[string]bool) // endpoints that have the chosen models
	if s.Placement != nil {
		for _, e := range s.Placement.Endpoints {
			shown[e.Address] = true
		}
	}
	for i := range s.Extprocs {
		r := &s.Extprocs[i].EndpointsResult
		r.Pools = slices.DeleteFunc(slices.Clone(r.Pools), func(p admin.Pool) bool { return c.pool != "" && p.Name != c.pool })
		r.Endpoints = slices.DeleteFunc(slices.Clone(r.Endpoints), func(e admin.Endpoint) bool {
			return c.pool != "" && e.Pool != c.pool || c.endpoint != "" && e.Address != c.endpoint ||
				len(c.models) > 0 && !shown[e.Address] && !c.serves(e)
		})
	}
	return s, nil
}

// serves reports whether an endpoint serves one of the chosen models, as extproc sees it.
func (c choice) serves(e admin.Endpoint) bool {
	return slices.ContainsFunc(e.Base, func(id string) bool { return slices.Contains(c.models, id) }) ||
		slices.ContainsFunc(e.Adapters, func(a admin.Adapter) bool { return slices.Contains(c.models, a.Name) })
}

// exists returns an error if extprocs do not know the pool, the endpoint or a model that was
// chosen.
func (c choice) exists(s State) error {
	var pools, endpoints []string
	served := make(map[string]bool)
	for _, x := range s.Extprocs {
		pools = append(pools, namesOf(x.Pools, func(p admin.Pool) string { return p.Name })...)
		for _, e := range x.Endpoints {
			endpoints = append(endpoints, e.Address)
			for _, id := range e.Base {
				served[id] = true
			}
			for _, a := range e.Adapters {
				served[a.Name] = true
			}
		}
	}
	pools, endpoints = sorted(pools), sorted(endpoints)
	switch {
	case c.pool != "" && !slices.Contains(pools, c.pool):
		return absent("pool", c.pool, pools)
	case c.endpoint != "" && !slices.Contains(endpoints, c.endpoint):
		return absent("endpoint", c.endpoint, endpoints)
	}
	for _, id := range c.models {
		if !served[id] {
			return fmt.Errorf("no model %s: no engine lists it, and there is no control that could load it", display.Name(id))
		}
	}
	return nil
}

// sorted returns the sorted names without duplicates.
func sorted(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// listedBy reports whether an engine lists a model, as extprocs see it.
func (s State) listedBy(id string) bool {
	c := choice{models: []string{id}}
	return slices.ContainsFunc(s.Extprocs, func(x Extproc) bool { return slices.ContainsFunc(x.Endpoints, c.serves) })
}

// ofView returns the selected part of control's view.
func (c choice) ofView(v decide.View, known State) (decide.View, error) {
	v.Pools, v.Endpoints = slices.Clone(v.Pools), slices.Clone(v.Endpoints)
	v.Models, v.VModels = slices.Clone(v.Models), slices.Clone(v.VModels)
	if c.pool != "" {
		if !slices.ContainsFunc(v.Pools, func(p decide.PoolView) bool { return p.Name == c.pool }) {
			return v, absent("pool", c.pool, namesOf(v.Pools, func(p decide.PoolView) string { return p.Name }))
		}
		v.Pools = slices.DeleteFunc(v.Pools, func(p decide.PoolView) bool { return p.Name != c.pool })
		v.Models = slices.DeleteFunc(v.Models, func(m decide.ModelView) bool { return m.Pool != c.pool })
		v.VModels = slices.DeleteFunc(v.VModels, func(m decide.VModelView) bool { return m.Pool != c.pool })
		v.Endpoints = slices.DeleteFunc(v.Endpoints, func(e decide.EndpointView) bool { return !slices.Contains(e.Pools, c.pool) })
		for i := range v.Endpoints {
			e := &v.Endpoints[i]
			e.Copies = slices.DeleteFunc(e.Copies, func(queued decide.CopyView) bool { return queued.Pool != c.pool })
		}
	}
	if c.endpoint != "" {
		all := namesOf(v.Endpoints, func(e decide.EndpointView) string { return e.Address })
		v.Endpoints = slices.DeleteFunc(v.Endpoints, func(e decide.EndpointView) bool { return e.Address != c.endpoint })
		if len(v.Endpoints) == 0 {
			return v, absent("endpoint", c.endpoint, all)
		}
		v.Models = slices.DeleteFunc(v.Models, func(m decide.ModelView) bool { return !isAt(m, v.Endpoints[0]) })
		v.VModels = slices.DeleteFunc(v.VModels, func(m decide.VModelView) bool {
			return !slices.ContainsFunc(v.Models, func(is decide.ModelView) bool { return is.Pool == m.Pool && names(m, is.ID) })
		})
		v.Pools = slices.DeleteFunc(v.Pools, func(p decide.PoolView) bool { return !slices.Contains(v.Endpoints[0].Pools, p.Name) })
	}
	if len(c.models) == 0 {
		return v, nil
	}
	chosen := slices.Clone(c.models)
	for _, id := range c.models {
		isVModel := false
		for _, m := range v.VModels {
			if m.ID == id {
				isVModel = true
				chosen = append(chosen, m.Target, m.Active, m.Canary)
			}
		}
		if !isVModel && !slices.ContainsFunc(v.Models, func(m decide.ModelView) bool { return m.ID == id }) && !known.listedBy(id) {
			return v,
				fmt.Errorf("no model %s%s: control knows the models of Models, VModels and LLMRoutes, those that clients registered, and those that engines list",
					display.Name(id),
					c.where())
		}
	}
	v.Models = slices.DeleteFunc(v.Models, func(m decide.ModelView) bool { return !slices.Contains(chosen, m.ID) })
	v.VModels = slices.DeleteFunc(v.VModels, func(m decide.VModelView) bool {
		return !slices.ContainsFunc(c.models, func(id string) bool { return m.ID == id || names(m, id) })
	})
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		e.Copies = slices.DeleteFunc(e.Copies, func(queued decide.CopyView) bool { return !slices.Contains(chosen, queued.ID) })
	}
	v.Endpoints = slices.DeleteFunc(v.Endpoints, func(e decide.EndpointView) bool { return len(e.Copies) == 0 })
	v.Pools = slices.DeleteFunc(v.Pools, func(p decide.PoolView) bool {
		return !slices.ContainsFunc(v.Models, func(m decide.ModelView) bool { return m.Pool == p.Name })
	})
	return v, nil
}

// where formats the selected endpoint or pool for an error message.
func (c choice) where() string {
	switch {
	case c.endpoint != "":
		return " at " + c.endpoint
	case c.pool != "":
		return " in " + c.pool
	}
	return ""
}

// isAt reports whether a model is loaded at an endpoint, or failed to load there.
func isAt(m decide.ModelView, e decide.EndpointView) bool {
	return slices.ContainsFunc(e.Copies, func(c decide.CopyView) bool { return c.ID == m.ID && c.Pool == m.Pool }) ||
		slices.ContainsFunc(m.Failures, func(f decide.FailureView) bool { return f.Endpoint == e.Address })
}

// names is true if a VModel sends requests to a model of its pool, or will do so later.
func names(v decide.VModelView, model string) bool {
	return model == v.Target || model == v.Active || model == v.Canary
}

func namesOf[T any](all []T, name func(T) string) (named []string) {
	for _, one := range all {
		named = append(named, name(one))
	}
	return named
}

// absent returns the error for a selected name that does not exist. It lists some names that do.
func absent(what, which string, there []string) error {
	const some = 5
	if len(there) == 0 {
		return fmt.Errorf("no %s %s: there is none at all", what, display.Name(which))
	}
	more := ""
	if len(there) > some {
		more = fmt.Sprintf(" and %d more", len(there)-some)
	}
	return fmt.Errorf("no %s %s; there is %s%s", what, display.Name(which), strings.Join(there[:min(some, len(there))], ", "), more)
}
