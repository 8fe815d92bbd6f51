package stream_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/flow/turns"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// promise makes requests of a pool wait and leave, one each second, until the flow has told a
// client when to return.
func promise(t *testing.T, f *flow.Flow, pool objects.Name) {
	t.Helper()
	r := flow.Request{Key: objects.ModelKey{Pool: pool}, Longest: time.Millisecond, Identity: 7}
	var all []*flow.Ticket
	for range 5 {
		ticket, err := f.Enqueue(r, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ticket)
	}
	for _, ticket := range all[:4] {
		if err := <-ticket.Turn(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		ticket.Dispatch(flow.Service{Fixed: 1}, time.Now()).Ended(1, time.Now())
		ticket.Leave()
	}
	if _, err := f.Enqueue(r, time.Now()); !errors.As(err, new(flow.Late)) {
		t.Fatalf("the request is not late: %v", err)
	}
	all[4].Leave()
}

// While requests wait here and in other processes, with reservations and promises, explanations
// change nothing: neither in the flow nor in the turns, the fleet and its counts. They take no room
// that is left to other requests.
func TestExplanationsTakeNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held *flow.Flow
		f := newFleetWith(fleet.Config{Published: func(v *endpointstate.View) {
			if held != nil {
				held.Published(v)
			}
		}, Freed: func(address, model string) { held.Freed(address, model) }})
		is := flow.NewTurns()
		held = flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 20, Alone: true, Turns: is})
		server, _ := newServer(t, f, func(c *stream.Config) { c.Flow, c.Settings.RequestsPerEndpoint = held, 1 })
		client := dialServer(t, server, stream.Own)
		promise(t, held, objects.Name{Namespace: "ns", Name: "silent"})
		var ends []context.CancelFunc
		for range 3 {
			ctx, end := context.WithCancel(t.Context())
			askFor(ctx, t, client, "llama")
			ends = append(ends, end)
		}
		awaitQueued(t, held, 2)
		time.Sleep(7 * time.Second) // the first one in order reserves room
		base := objects.Name{Namespace: "ns", Name: "base"}
		if n := len(held.Reserved(base)); n != 1 {
			t.Errorf("%d reservations", n)
		}
		queries := []admin.ExplainQuery{
			{Body: body("llama")}, {Body: body("qwen")}, {Body: body("text-to-sql")}, {Path: "/v2/models/llama/infer", Body: []byte(`{}`)},
		}
		explainAll := func() (all []admin.ExplainResult) {
			for range 3 {
				for _, q := range queries {
					got, err := server.Explain(q)
					if err != nil {
						t.Error(err)
					}
					all = append(all, got)
				}
			}
			return all
		}
		explainAll() // makes what all explanations share
		var others []flow.Others
		for _, pool := range []objects.Name{base, {Namespace: "ns", Name: "open"}} {
			others = append(others, flow.Others{Pool: pool, Others: turns.Others{Requests: 1, Share: 1, After: 1}})
		}
		is.Hear(others, time.Second)
		synctest.Wait()
		before := stateOf(server, f, held, is)
		all := explainAll()
		after := stateOf(server, f, held, is)
		for i := range max(len(before), len(after)) {
			if i >= len(before) || i >= len(after) || before[i] != after[i] {
				t.Errorf("the state has changed:\n%s\n%s", before[min(i, len(before)-1)], after[min(i, len(after)-1)])
				break
			}
		}
		expect := func(got admin.ExplainResult, waits, why string) {
			t.Helper()
			if !strings.Contains(got.Waits, waits) || len(got.Candidates) == 0 {
				t.Errorf("%s waits because %q, want %q", got.Model, got.Waits, waits)
			}
			for _, c := range got.Candidates {
				if c.Excluded != why && c.State == "healthy" {
					t.Errorf("%s at %s is excluded because %q, want %q", got.Model, c.Endpoint, c.Excluded, why)
				}
			}
		}
		expect(all[0], "other requests of the pool wait", "its room is reserved for a request that waits longer")
		expect(all[1], "belong to other extprocs", "its room belongs to another extproc now")
		for _, end := range ends {
			end()
		}
		awaitQueued(t, held, 0)
	})
}

// The explanation says for each endpoint why it has no room: those that are only for retries, and
// all if the request waits.
func TestExplanationsSayWhyThereIsNoRoom(t *testing.T) {
	f, held, _ := window(t, 1, nil)
	server, _ := newServer(t, f, func(c *stream.Config) { c.Flow, c.Settings.RequestsPerEndpoint = held, 1 })
	client := dialServer(t, server, stream.Own)
	const full = "it has 1 of at most 1 requests"
	endpoints := 0
	for n := 0; ; n++ {
		got, err := server.Explain(admin.ExplainQuery{Body: body("qwen")})
		if err != nil {
			t.Fatal(err)
		}
		free, shut, excluded := 0, 0, 0
		for _, c := range got.Candidates {
			switch {
			case c.Excluded == full && c.NoRoom == full:
				excluded++
			case c.NoRoom == full:
				shut++
			case c.NoRoom == "" && c.Excluded == "":
				free++
			}
		}
		if n == 0 {
			endpoints = free
		}
		if got.Waits != "" {
			if n != endpoints || excluded != n || free+shut > 0 || !strings.Contains(got.Waits, "no engine could start the request") {
				t.Errorf("with %d requests at %d endpoints: %+v", n, endpoints, got)
			}
			break
		}
		if free != endpoints-n || shut != n || excluded > 0 {
			t.Fatalf("with %d requests at %d endpoints: %+v", n, endpoints, got)
		}
		if _, m := askFor(t.Context(), t, client, "qwen"); m.GetOverrideMessageTimeout() != nil {
			t.Fatal(m)
		}
	}
}

// The record of a decision and the explanation name the fallback that serves, and only then.
func TestFallbacksAreNamed(t *testing.T) {
	f := newFleetOfFallbacks()
	server, _ := newServer(t, f, nil)
	for model, want := range map[string]string{"spare": "base", "tuned": "baseModel", "tuned-plain": "base", "absent": ""} {
		got, err := server.Explain(admin.ExplainQuery{Listener: "Gateway ns/g chat", Body: body(model)})
		if err != nil || got.Fallback != want || (want == "") != (got.Error != nil) {
			t.Errorf("%s: %+v, %v", model, got, err)
		}
		x := server.ExchangeAt("Gateway ns/g chat", objects.Name{}, nil)
		decide(t, x, chat(model, model)...)
		x.End(time.Now())
		if then := recorded(t, server, model); len(then) != 1 || then[0].Fallback != want {
			t.Errorf("%s: %+v", model, then)
		}
	}
}
