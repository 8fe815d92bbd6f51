package stream_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// If it is unknown which endpoint has a stored response, several endpoints are asked, in all pools
// that may have it. If every one of them answered 404, requests in the next seconds get 404 at
// once.
func TestStoredResponseIsSearched(t *testing.T) {
	now := time.Now()
	f := newFleetWith(fleet.Config{Now: func() time.Time { return now }})
	server, _ := newServer(t, f, func(c *stream.Config) { c.Settings.EndpointsPerRequest = 3 })
	ask := func(at objects.Name, lines ...string) string {
		x := server.ExchangeAt("", at, nil)
		var out strings.Builder
		for _, line := range lines {
			answers, err := x.Receive(message(t, line), now)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range answers {
				out.WriteString(render(t, m))
			}
		}
		x.End(now)
		return out.String()
	}
	expect := func(what, got string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: %q is not in\n%s", what, w, got)
			}
		}
	}
	get := "headers :method=GET :path=/v1/responses/resp_x end"
	for range 8 {
		got := ask(objects.Name{}, get)
		_, picks, _ := strings.Cut(got, "destination-endpoint=")
		picks, _, _ = strings.Cut(picks, " ")
		// A pool with its own token is not asked together with other pools.
		if n := 1 + strings.Count(picks, ","); strings.Contains(picks, "10.0.4.1:") != (n < 8) {
			t.Errorf("%d endpoints are asked: %s", n, picks)
		}
		expect("a response", got, `"stored":"resp_x"`, `"everybody":false`, "x-envoy-max-retries=")
	}
	goesOn := ask(objects.Name{Namespace: "ns", Name: "sticky"}, "headers :method=POST :path=/v1/responses",
		`body {"model":"sticky","previous_response_id":"resp_y"}`)
	expect("a turn", goesOn, `"stored":"resp_y"`, `"everybody":true`, "x-envoy-max-retries=3")
	f.Observe(outcome.Outcome{Pool: "ns/sticky", Endpoint: "10.0.3.4:8000", Status: 404, Stored: "resp_y", Everybody: true})
	f.Observe(outcome.Outcome{Pool: "ns/sticky", Endpoint: "10.0.3.4:8000", Status: 200, Stored: "resp_x"})
	expect("a response that no endpoint has", ask(objects.Name{}, "headers :method=GET :path=/v1/responses/resp_y end"),
		"404 details=headgate_response_not_found")
	expect("a response that was found", ask(objects.Name{}, get), "destination-endpoint=10.0.3.4:8000")
	now = now.Add(11 * time.Second)
	f.SetWorld(f.View().World)
	expect("a response that no endpoint had a while ago", ask(objects.Name{}, "headers :method=GET :path=/v1/responses/resp_y end"),
		`"stored":"resp_y"`)
	f.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) { s.Refused("10.0.3.1:8000", now) })
	f.SetWorld(f.View().World)
	expect("a response that an endpoint which is out may have",
		ask(objects.Name{Namespace: "ns", Name: "sticky"}, "headers :method=GET :path=/v1/responses/resp_w end"), `"stored":"resp_w"`,
		`"everybody":false`)
	for _, path := range []string{"/v1/chat/completions", "/v1/responses"} {
		got := ask(objects.Name{}, "headers :method=POST :path="+path, `body {"model":"sticky","previous_response_id":"`+
			map[bool]string{true: "no id", false: "resp_z"}[path == "/v1/responses"]+`"}`)
		if strings.Contains(got, "stored") {
			t.Errorf("%s searches: %s", path, got)
		}
	}
}

// In a pool that forbids retries one endpoint is asked, in other pools several, whatever the flags
// say.
func TestPoolSettingsLimitTheSearch(t *testing.T) {
	never, often := int32(0), int32(2)
	for picks, attempts := range map[int]*int32{3: &never, 1: &often} {
		f := newFleetWith(fleet.Config{}, func(s *objects.Set) {
			for i := range s.Settings {
				s.Settings[i].Spec.Retry.Attempts = attempts
			}
		})
		server, _ := newServer(t, f, func(c *stream.Config) { c.Settings.EndpointsPerRequest = picks })
		for what, lines := range map[string][]string{
			"a response": {"headers :method=GET :path=/v1/responses/resp_x end"},
			"a turn":     {"headers :method=POST :path=/v1/responses", `body {"model":"sticky","previous_response_id":"resp_x"}`},
		} {
			out := replies(t, server.ExchangeAt("", objects.Name{Namespace: "ns", Name: "sticky"}, nil), lines)
			_, to, _ := strings.Cut(out, "destination-endpoint=")
			to, _, _ = strings.Cut(to, " ")
			if n, want := 1+strings.Count(to, ","), map[int]int{3: 1, 1: 4}[picks]; n != want ||
				strings.Contains(out, "max-retries") != (want > 1) {
				t.Errorf("with --endpoints-per-request %d and attempts %d, %s is searched at %d endpoints, want %d: %s", picks,
					*attempts, what,
					n, want, out)
			}
		}
	}
}

// At a listener each pool is a cluster of its own, so the relay asks one pool after the other, and
// at most eight endpoints altogether. If the response's endpoint is known, only this endpoint is
// asked.
func TestPoolsOfAListenerAreSearchedInTurn(t *testing.T) {
	f := newFleetWith(fleet.Config{}, func(s *objects.Set) { s.Routes = append(s.Routes, at("chat", aRoute("also", "sticky", ""))) })
	sealer := relayTokens(t, 'k')
	server, _ := newServer(t, f, func(c *stream.Config) {
		c.Settings.EndpointsPerRequest, c.Relay, c.RelayTokens = 3, "/run/inner.sock", sealer
	})
	asked := func(lines ...string) (string, relaytoken.Request) {
		t.Helper()
		return sent(t, server.ExchangeAt("Gateway ns/g chat", objects.Name{}, nil).TakenAt("back"), sealer, lines...)
	}
	first := make(map[string]bool)
	for range 50 {
		to, e := asked("headers :method=GET :path=/v1/responses/resp_x end")
		if e.Kind != relaytoken.Search || e.Back != "back" || e.Listener != "Gateway ns/g chat" || e.Most != 4 || len(e.Models) != 2 {
			t.Fatalf("its token is %+v", e)
		}
		pools := []string{e.Models[0].Target.Pool.String(), e.Models[1].Target.Pool.String()}
		if to != "/run/inner.sock pool/"+pools[0] {
			t.Errorf("it goes to %s", to)
		}
		first[pools[0]] = true
		if slices.Sort(pools); !slices.Equal(pools, []string{"ns/base", "ns/sticky"}) {
			t.Errorf("the pools are %v", pools)
		}
	}
	if len(first) != 2 {
		t.Errorf("the first is always one of %v", first)
	}
	if to, e := asked("headers :method=POST :path=/v1/responses/resp_x/cancel", "body {}"); e.Kind != relaytoken.Search ||
		strings.HasPrefix(to, "reply") {
		t.Errorf("a cancellation goes to %s with %+v", to, e)
	}
	again := relaytoken.Request{
		Kind: relaytoken.Sent, Back: "back", Listener: "Gateway ns/g chat", Most: 3, Last: true,
		Models: []relaytoken.Model{{Target: route.Target{Pool: objects.Name{Namespace: "ns", Name: "sticky"}}}},
	}
	x := server.ExchangeAt("Gateway ns/g chat", objects.Name{}, nil).TakenAt("back")
	defer x.End(time.Now())
	out, err := x.Receive(message(t, "headers :method=GET :path=/v1/responses/resp_x end x-headgate-relay-token="+sealer.Seal(again)),
		time.Now())
	if err != nil || len(out) != 1 {
		t.Fatal(out, err)
	}
	got := render(t, out[0])
	for _, want := range []string{
		"x-envoy-max-retries=2", "x-gateway-pool-cluster=pool/ns/sticky", `"stored":"resp_x"`,
		`"everybody":false`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("once more %q is not in\n%s", want, got)
		}
	}
	f.Made("resp_x", fleet.Maker{Pool: objects.Name{Namespace: "ns", Name: "base"}, Address: address})
	if to, e := asked("headers :method=GET :path=/v1/responses/resp_x end"); e.Kind != "" || to != address+" pool/ns/base" {
		t.Errorf("a known response goes to %s with %+v", to, e)
	}
}

// The endpoint that made a response is asked first, even if it has not been scraped yet: after its
// start, extproc learns the makers of responses before it scrapes them.
func TestCreatorOfAResponseIsAskedFirst(t *testing.T) {
	for attempts, after := range map[int32]string{2: ",", 0: " "} { // a pool that forbids retries asks only the response's maker
		askMaker(t, attempts, "destination-endpoint=10.0.3.5:8000"+after)
	}
}

func askMaker(t *testing.T, attempts int32, want string) {
	var all objects.Set
	f := newFleetWith(fleet.Config{}, func(s *objects.Set) { all = *s })
	for i := range all.Settings {
		if all.Settings[i].Spec.Retry != nil {
			all.Settings[i].Spec.Retry.Attempts = &attempts
		}
	}
	all.Pods = append(all.Pods, aPod("sticky", "10.0.3.5"))
	all.Network = aNetwork(all.Routes, all.Pools)
	w := objects.Build(all)
	w.Offers = attach.Of(w.Network).Offers(w)
	f.SetWorld(w)
	f.RememberMaker("resp_x", fleet.Maker{Pool: objects.Name{Namespace: "ns", Name: "sticky"}, Address: "10.0.3.5:8000"})
	server, _ := newServer(t, f, func(c *stream.Config) { c.Settings.EndpointsPerRequest = 3 })
	for what, lines := range map[string][]string{
		"a response": {"headers :method=GET :path=/v1/responses/resp_x end"},
		"a turn":     {"headers :method=POST :path=/v1/responses", `body {"model":"sticky","previous_response_id":"resp_x"}`},
	} {
		out := replies(t, server.ExchangeAt("", objects.Name{}, nil), lines)
		if !strings.Contains(out, want) {
			t.Errorf("%d attempts, %s: %s", attempts, what, out)
		}
	}
}

// replies sends messages to an exchange and then ends it. It returns the replies in the format of
// scenario files.
func replies(t *testing.T, x stream.Exchange, lines []string) string {
	t.Helper()
	var out strings.Builder
	for _, line := range lines {
		all, err := x.Receive(message(t, line), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			out.WriteString(render(t, m))
		}
	}
	x.End(time.Now())
	return out.String()
}
