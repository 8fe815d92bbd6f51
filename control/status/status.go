// Package status implements the command "control status": it asks a running control where models
// are loaded, and prints the answer.
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
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/cli"
)

const usage = `control status asks a running control where models are loaded, and prints tables. Without arguments it prints all pools,
all endpoints, and the models that have too few copies. Arguments and flags select some of them.

  Pools      the number of endpoints, models, copies and queued requests, and the share of room that is free. All models
             with a request within the WARM WINDOW are loaded or loading
  Endpoints  one line for each, those that are not ready first, with the reason. Then its models:
               loaded     serves requests ("3 in flight" counts those that run now).
               loading    since when, and the reason of the load. These are queued requests (requests), the minimum number of
                          copies (least) and a pod that migrates (migration). Others are too much load (load), an endpoint
                          with little load (balance), a second copy of a model in use (use) and free room (room).
               queued     waits to be loaded here, behind other loads or until another model is evicted.
               draining   gets no new requests; control unloads it when the running ones have ended.
               unloading  the engine is unloading it.
  Models     models with too few copies, with the queued requests, the longest wait, and the reason for too few copies.
             Failed loads follow, with the engine's message and the time of the next attempt. Models given as MODEL are
             always printed
  VModels    VModels that do not serve their target yet, and why. MODEL selects the VModels of that id, and those whose
             target is that model

States of an endpoint:
  ready
  starting     control has not scraped it yet
  silent       it accepts connections but does not answer
  down         it refused a connection
  doubtful     it may have restarted and lost its models
  terminating  its pod is being deleted
  migrating    its pod is being deleted, and its models serve until other endpoints have copies
  stopping     its engine reports that it is stopping

USED is the number of adapter slots or bytes that models use. LOADS is the number of running loads and its limit.

control answers on loopback only, on the port of --metrics-port. In a cluster, forward a port to the pod of the leader:

  kubectl port-forward -n headgate-system "pod/$(kubectl get lease headgate-control -n headgate-system -o jsonpath='{.spec.holderIdentity}')" 9091

Usage:

  control status [flags] [MODEL...]

Examples:

  control status
  control status --pool default/llama --all
  control status --endpoint 10.0.0.7:8000
  control status a01 a02                       print where two models are loaded, and why not elsewhere
  control status -o json a01

`

// askTimeout is how long control may take to answer.
const askTimeout = 30 * time.Second

// Command is the command "status". It prints to out.
func Command(ctx context.Context, args []string, out io.Writer) error {
	var c choice
	fs := cli.Flags("control status", usage, out)
	at := fs.String("url", "http://127.0.0.1:9091", "ask the control that serves metrics at this `URL`, http://HOST:PORT")
	fs.StringVar(&c.pool, "pool", "", "print only this InferencePool, `NAMESPACE/NAME`")
	fs.StringVar(&c.endpoint, "endpoint", "", "print only the endpoint `HOST:PORT`, and the models that are loaded or failed there")
	all := fs.Bool("all", false,
		fmt.Sprintf("print all endpoints and models instead of the first %d of each, and all copies of an endpoint instead of %d in each state", maxRows,
			maxCopies))
	format := fs.StringP("output", "o", "table", "output `FORMAT`: table, or json, which always prints everything selected")
	if err := cli.Parse(fs, args, math.MaxInt); err != nil {
		return err
	}
	c.models = fs.Args()
	if *format != "table" && *format != "json" {
		return fmt.Errorf("-o %q: want table or json", *format)
	}
	base, err := url.Parse(*at)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return fmt.Errorf("--url %q: want http://HOST:PORT, such as http://127.0.0.1:9091", *at)
	}
	v, err := ask(ctx, strings.TrimSuffix(base.String(), "/"))
	if err != nil {
		return err
	}
	copies := copiesOf(v)
	if v, err = c.of(v); err != nil {
		return err
	}
	if *format == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	_, err = io.WriteString(out, page{v, c, *all, copies}.text())
	return err
}

// ask requests the decide.View of the control at a URL.
func ask(ctx context.Context, at string) (v decide.View, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"/placement", nil)
	if err != nil {
		return v, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return v, fmt.Errorf("no process listens at %s: set --url to where control serves metrics (its --metrics-port, on loopback); in a cluster "+
			"run kubectl port-forward to the leader's pod first (control status --help prints the command)", at)
	case errors.Is(err, context.DeadlineExceeded):
		return v, fmt.Errorf("%s has not answered within %v", at, askTimeout)
	case err != nil:
		return v, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		words, _ := io.ReadAll(io.LimitReader(response.Body, 2048))
		return v, refusal(at, response.StatusCode, string(bytes.TrimSpace(words)))
	}
	if err := json.NewDecoder(response.Body).Decode(&v); err != nil {
		return v, fmt.Errorf("%s answers with something else than a placement: %w", at, err)
	}
	return v, nil
}

// refusal returns the error for an answer with an HTTP status other than 200.
func refusal(at string, code int, words string) error {
	switch code {
	case http.StatusNotFound:
		return fmt.Errorf("%s has no /placement: it is not a control, or an older version", at)
	case http.StatusServiceUnavailable:
		return fmt.Errorf("the control at %s is not the leader: %s", at, oneLine(words))
	}
	return fmt.Errorf("%s answers %d: %s", at, code, oneLine(words))
}

// choice selects what to print.
type choice struct {
	pool, endpoint string   // empty: all pools or endpoints
	models         []string // ids of models; none: those with too few copies
}

// of returns the selected part of a view. It is an error to select something that does not exist.
func (c choice) of(v decide.View) (decide.View, error) {
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
		if !isVModel && !slices.ContainsFunc(v.Models, func(m decide.ModelView) bool { return m.ID == id }) {
			return v,
				fmt.Errorf("no model %s%s: control knows the models of Models, VModels and LLMRoutes, those that clients registered, and those that engines list",
					name(id),
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
		return fmt.Errorf("no %s %s: there is none at all", what, name(which))
	}
	more := ""
	if len(there) > some {
		more = fmt.Sprintf(" and %d more", len(there)-some)
	}
	return fmt.Errorf("no %s %s; there is %s%s", what, name(which), strings.Join(there[:min(some, len(there))], ", "), more)
}
