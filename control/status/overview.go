// Package status tells people where models are and why some are not, as a command: it asks a control that runs.
package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/control/place"
)

const usage = `control status asks a control that runs where models are, and prints tables. Without arguments it prints all pools,
endpoints and models that are short of copies; arguments and flags choose some.

  Pools      how many endpoints, models and copies, how much room is free, for how long back every model that was used is
             loaded or being loaded (COVER), and how many requests are held: they wait for a model
  Endpoints  a line each, those that are not ready first, with why; and the models there:
               loaded     it answers requests ("3 in flight" are there now)
               loading    since when, and what for: requests that wait (requests), the copies that must be (least), a copy whose
                          pod migrates (migration), load (load), an endpoint that bears little (balance), a second copy of
                          what is in use (use), room that is free (room)
               queued     it has a place and waits for its turn, or for the room that others leave
               draining   no request begins there any more; those that are there end, then it is unloaded
               unloading  the engine was told to
  Models     those short of copies: how many requests are held for one and since when, why it has no more copies, and what engines
             said to the loads that failed, with how long that counts; with MODEL, that model whether it is short or not
  VModels    those whose requests do not go where they are to, and why; with MODEL, one of that id, with the models that it names,
             and those that name that model

An endpoint is ready; starting, which is not looked at yet; silent, which takes connections and does not answer; down, which turned a
connection away; doubtful, which may have begun anew without what it had; terminating, whose pod is being deleted; migrating,
whose pod is, too, and what it has serves until it has copies elsewhere; or stopping, whose engine said so. USED is what its
models take up of what they may: slots of adapters, or bytes. LOADS is how many go on, of how many at once.

control answers on loopback alone, on the port of its --metrics-port. In a cluster the control that leads is asked through a
port-forward to its pod:

  kubectl port-forward -n headgate-system "pod/$(kubectl get lease headgate-control -n headgate-system -o jsonpath='{.spec.holderIdentity}')" 9091

Usage:

  control status [flags] [MODEL...]

Examples:

  control status
  control status --pool default/llama --all
  control status --endpoint 10.0.0.7:8000
  control status a01 a02                       where two models are, and why they are not elsewhere
  control status -o json a01

Flags:

`

// asks is how long control may take to answer.
const asks = 30 * time.Second

// Command is the command "status". It prints to out.
func Command(ctx context.Context, args []string, out io.Writer) error {
	var c choice
	fs := pflag.NewFlagSet("status", pflag.ContinueOnError)
	fs.Usage = func() { fmt.Fprintln(out, usage+fs.FlagUsagesWrapped(100)) }
	fs.SortFlags = false
	at := fs.String("url", "http://127.0.0.1:9091", "ask the control that serves metrics at this `URL`, http://HOST:PORT")
	fs.StringVar(&c.pool, "pool", "", "print what is of this InferencePool, `NAMESPACE/NAME`, alone")
	fs.StringVar(&c.endpoint, "endpoint", "", "print the endpoint `HOST:PORT` alone, and models that are there or failed there")
	all := fs.Bool("all", false, fmt.Sprintf("print all endpoints and models, in place of the first %d of each, and all copies of each endpoint, in place of %d in each state", most, mostCopies))
	format := fs.StringP("output", "o", "table", "print a `FORMAT`: table, or json, which is all that was chosen")
	if err := fs.Parse(args); err != nil {
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
	_, err = io.WriteString(out, picture{v, c, *all, copies}.text())
	return err
}

// ask asks the control at a URL.
func ask(ctx context.Context, at string) (v place.View, err error) {
	ctx, cancel := context.WithTimeout(ctx, asks)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"/placement", nil)
	if err != nil {
		return v, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return v, fmt.Errorf("nobody listens at %s: say with --url where a control serves metrics, which is the port of its --metrics-port, on loopback; in a cluster "+
			"run kubectl port-forward to the pod that leads first (control status --help has the command)", at)
	case errors.Is(err, context.DeadlineExceeded):
		return v, fmt.Errorf("%s has not answered within %v", at, asks)
	case err != nil:
		return v, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		words, _ := io.ReadAll(io.LimitReader(response.Body, 2048))
		return v, refusal(at, response.StatusCode, string(bytes.TrimSpace(words)))
	}
	if err := json.NewDecoder(response.Body).Decode(&v); err != nil {
		return v, fmt.Errorf("%s gives no placement that this program understands: %w", at, err)
	}
	return v, nil
}

// refusal is why an answer is none.
func refusal(at string, code int, words string) error {
	switch code {
	case http.StatusNotFound:
		return fmt.Errorf("%s is no control, or an older one: it has no /placement", at)
	case http.StatusServiceUnavailable:
		return fmt.Errorf("the control at %s does not lead: %s", at, oneLine(words))
	}
	return fmt.Errorf("%s answers %d: %s", at, code, oneLine(words))
}

// choice is what is to be printed.
type choice struct {
	pool, endpoint string   // empty: all
	models         []string // their ids; none: those that are short of copies
}

// of is what of a view is chosen. It is an error to choose what there is not.
func (c choice) of(v place.View) (place.View, error) {
	if c.pool != "" {
		if !slices.ContainsFunc(v.Pools, func(p place.PoolView) bool { return p.Name == c.pool }) {
			return v, absent("pool", c.pool, namesOf(v.Pools, func(p place.PoolView) string { return p.Name }))
		}
		v.Pools = slices.DeleteFunc(v.Pools, func(p place.PoolView) bool { return p.Name != c.pool })
		v.Models = slices.DeleteFunc(v.Models, func(m place.ModelView) bool { return m.Pool != c.pool })
		v.VModels = slices.DeleteFunc(v.VModels, func(m place.VModelView) bool { return m.Pool != c.pool })
		v.Endpoints = slices.DeleteFunc(v.Endpoints, func(e place.EndpointView) bool { return !slices.Contains(e.Pools, c.pool) })
		for i := range v.Endpoints {
			e := &v.Endpoints[i]
			e.Copies = slices.DeleteFunc(e.Copies, func(held place.CopyView) bool { return held.Pool != c.pool })
		}
	}
	if c.endpoint != "" {
		all := namesOf(v.Endpoints, func(e place.EndpointView) string { return e.Address })
		v.Endpoints = slices.DeleteFunc(v.Endpoints, func(e place.EndpointView) bool { return e.Address != c.endpoint })
		if len(v.Endpoints) == 0 {
			return v, absent("endpoint", c.endpoint, all)
		}
		v.Models = slices.DeleteFunc(v.Models, func(m place.ModelView) bool { return !isAt(m, v.Endpoints[0]) })
		v.VModels = slices.DeleteFunc(v.VModels, func(m place.VModelView) bool {
			return !slices.ContainsFunc(v.Models, func(is place.ModelView) bool { return is.Pool == m.Pool && names(m, is.ID) })
		})
		v.Pools = slices.DeleteFunc(v.Pools, func(p place.PoolView) bool { return !slices.Contains(v.Endpoints[0].Pools, p.Name) })
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
		if !isVModel && !slices.ContainsFunc(v.Models, func(m place.ModelView) bool { return m.ID == id }) {
			return v, fmt.Errorf("there is no model %s%s: control knows those of Models, VModels and LLMRoutes, those that clients registered, and what engines list", name(id), c.where())
		}
	}
	v.Models = slices.DeleteFunc(v.Models, func(m place.ModelView) bool { return !slices.Contains(chosen, m.ID) })
	v.VModels = slices.DeleteFunc(v.VModels, func(m place.VModelView) bool {
		return !slices.ContainsFunc(c.models, func(id string) bool { return m.ID == id || names(m, id) })
	})
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		e.Copies = slices.DeleteFunc(e.Copies, func(held place.CopyView) bool { return !slices.Contains(chosen, held.ID) })
	}
	v.Endpoints = slices.DeleteFunc(v.Endpoints, func(e place.EndpointView) bool { return len(e.Copies) == 0 })
	v.Pools = slices.DeleteFunc(v.Pools, func(p place.PoolView) bool {
		return !slices.ContainsFunc(v.Models, func(m place.ModelView) bool { return m.Pool == p.Name })
	})
	return v, nil
}

// where says what was chosen of what models may be at.
func (c choice) where() string {
	switch {
	case c.endpoint != "":
		return " at " + c.endpoint
	case c.pool != "":
		return " in " + c.pool
	}
	return ""
}

// isAt says whether a model is at an endpoint, or failed to be loaded there.
func isAt(m place.ModelView, e place.EndpointView) bool {
	return slices.ContainsFunc(e.Copies, func(c place.CopyView) bool { return c.ID == m.ID && c.Pool == m.Pool }) ||
		slices.ContainsFunc(m.Failures, func(f place.FailureView) bool { return f.Endpoint == e.Address })
}

// names says whether requests for a VModel go, or are to go, to a model of its pool.
func names(v place.VModelView, model string) bool {
	return model == v.Target || model == v.Active || model == v.Canary
}

func namesOf[T any](all []T, name func(T) string) (named []string) {
	for _, one := range all {
		named = append(named, name(one))
	}
	return named
}

// absent says that there is no such thing, and some of those that there are.
func absent(what, which string, there []string) error {
	const some = 5
	if len(there) == 0 {
		return fmt.Errorf("there is no %s %s, and no other", what, name(which))
	}
	more := ""
	if len(there) > some {
		more = fmt.Sprintf(" and %d more", len(there)-some)
	}
	return fmt.Errorf("there is no %s %s; there is %s%s", what, name(which), strings.Join(there[:min(some, len(there))], ", "), more)
}
