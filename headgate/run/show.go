package run

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/headgate/headgate/headgate/rig"
)

// listPatience is how long to wait for the first model list. extproc scrapes a server as soon as it
// has the server's address.
const listPatience = 3 * time.Second

// show prints the output of a run.
type show struct {
	out     io.Writer
	rig     *rig.Rig
	servers []string // addresses from --endpoints; empty if the engines are in objects
	notices *notices
	watch   *watch
	untried bool // no request to try was printed, because no server lists a model
}

// welcome prints the address of Headgate, requests to try, and what each line of metrics means.
func (s *show) welcome(ctx context.Context) {
	s.say("\nHeadgate serves OpenAI's API at %s/v1. Try, in another terminal:\n\n  curl %[1]s/v1/models\n", s.url())
	switch {
	case len(s.servers) > 0:
		s.welcomeServers(ctx)
	case len(s.rig.Agents) > 0:
		s.welcomeModels()
	default:
		base, adapter := examples(s.rig)
		s.try(base, "")
		s.try(adapter, `, "stream": true`)
		s.say("\nNo adapter is loaded yet: the first request for one waits until control has loaded it.\n\n  models   http://%s/models lists the engines that have each model\n  metrics  http://%s/metrics (extproc), http://%[1]s/metrics (control)\n  Envoy    http://%[3]s is its admin interface\n\n",
			s.rig.ControlMetrics, s.rig.Metrics, s.rig.Admin)
	}
	placing, slots := "requests that wait in extproc, loads and evictions of models; ", " and adapter slots (● is occupied)"
	if s.rig.ControlMetrics == "" {
		placing = ""
	}
	s.say("Ctrl-C stops everything. The lines show, each second: %sfor each engine, running+waiting requests%s.\n\n", placing, slots)
}

// welcomeModels prints a request for each of two models that agents fetch.
func (s *show) welcomeModels() {
	all := s.rig.World().Catalogue
	for _, m := range all[:min(2, len(all))] {
		s.say("\n  curl %s/v2/models/%s/infer -H 'content-type: application/json' -d '{\n    \"inputs\": [{\"name\": \"x\", \"shape\": [1, 1], \"datatype\": \"FP64\", \"data\": [2.5]}]}'\n", s.url(), m.ID)
	}
	s.say("\nNo model is loaded yet: the first request for one waits until an agent has fetched its file and the engine has loaded it.\n\n  models   http://%s/models lists the engines that have each model\n  agents   %s/agent-*.log\n  metrics  http://%s/metrics (extproc), http://%[1]s/metrics (control)\n  Envoy    http://%[4]s is its admin interface\n\n",
		s.rig.ControlMetrics, s.rig.Dir, s.rig.Metrics, s.rig.Admin)
}

// welcomeServers prints a request to try at the given servers, and what to do about servers without
// a model.
func (s *show) welcomeServers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for s.untried = true; s.untried && ctx.Err() == nil; {
		if s.tryFirst(ctx); s.untried {
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}
	var faults strings.Builder
	for _, server := range s.servers {
		if why := fault(context.WithoutCancel(ctx), &http.Client{Timeout: listPatience}, server); why != "" {
			fmt.Fprintf(&faults, "  %-24s %s\n", server, why)
		}
	}
	switch {
	case s.untried:
		s.say("\nNone of the servers lists a model:\n\n%s\nHeadgate keeps asking them. When one lists a model, an example request is printed here.\n",
			faults.String())
	case faults.Len() > 0:
		s.say("\nRequests cannot use these servers yet:\n\n%s", faults.String())
	}
	s.say("\nThe metrics are at http://%s/metrics, and Envoy's admin interface is at http://%s.\n", s.rig.Metrics, s.rig.Admin)
}

// tryFirst prints a request for the first model that a server lists. If no server lists a model, it
// prints nothing.
func (s *show) tryFirst(ctx context.Context) {
	all, err := models(ctx, &s.watch.client, s.url())
	if err == nil && len(all) > 0 {
		s.untried = false
		s.try(all[0].ID, "")
	}
}

// try prints a request for a model, with more fields in its body. It prints nothing if model is
// empty.
func (s *show) try(model, more string) {
	if model == "" {
		return
	}
	s.say("\n  curl %s/v1/chat/completions -H 'content-type: application/json' -d '{\n    \"model\": %s, \"max_tokens\": 40%s,\n    \"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'\n",
		s.url(), quote(model), more)
}

// quote formats a text as a JSON string, for use inside single quotes in a shell.
func quote(text string) string {
	quoted, _ := json.Marshal(text) // cannot fail for a string
	return strings.ReplaceAll(string(quoted), "'", `'\''`)
}

// second prints new messages about objects, and a line of metrics.
func (s *show) second(ctx context.Context) {
	for _, line := range s.notices.next() {
		s.say("%s\n", line)
		s.watch.names = nil // read the names again: an edit may have renamed a pod
	}
	if s.untried {
		s.tryFirst(ctx)
	}
	s.say("%s\n", s.watch.line(ctx))
}

// url returns the URL of Headgate on this machine.
func (s *show) url() string {
	host, port, _ := net.SplitHostPort(s.rig.Listen) // cannot fail: the address was listened on
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// say prints to the output and ignores errors.
func (s *show) say(format string, args ...any) { _, _ = fmt.Fprintf(s.out, format, args...) }

// examples returns one model that is a base model and one that is an adapter. A name is empty if
// there is no such model.
func examples(r *rig.Rig) (base, adapter string) {
	for _, route := range r.World().Routes {
		switch {
		case len(route.Models) == 0:
		case route.Adapter == "" && base == "":
			base = route.Models[0]
		case route.Adapter != "" && adapter == "":
			adapter = route.Models[0]
		}
	}
	return base, adapter
}
