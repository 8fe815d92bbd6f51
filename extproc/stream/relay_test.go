package stream_test

import (
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

func relayTokens(t *testing.T, key byte) *relaytoken.Sealer {
	t.Helper()
	block, err := aes.NewCipher([]byte(strings.Repeat(string(key), 32)))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		t.Fatal(err)
	}
	return relaytoken.NewSealer(aead)
}

// withRelay returns a server with a relay, and the fleet of newFleetOfVModels. Control has loaded
// "sql-v2" there.
func withRelay(t *testing.T, change func(*stream.Config)) (*stream.Server, *fleet.Fleet, *relaytoken.Sealer) {
	t.Helper()
	f := newFleetOfVModels(fleet.Config{Placed: true})
	f.ApplyPlacement(news(t, f, []string{"loaded=sql-v2@" + address, "loaded=mm-1@" + address}))
	sealer := relayTokens(t, 'k')
	server, _ := newServer(t, f, func(c *stream.Config) {
		c.Flow = flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 20})
		c.Relay, c.RelayTokens = "/run/inner.sock", sealer
		c.Settings.EndpointsPerRequest = 3
		if change != nil {
			change(c)
		}
	})
	return server, f, sealer
}

// sent returns the destination of a request, with the models that it names, and its relay token. If
// the request was not sent, the destination is its reply or what it waits for.
func sent(t *testing.T, x stream.Exchange, sealer *relaytoken.Sealer, lines ...string) (to string, e relaytoken.Request) {
	t.Helper()
	now := time.Now()
	var out []string
	for _, line := range lines {
		answers, err := x.Receive(message(t, line), now)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range answers {
			if r := m.GetImmediateResponse(); r != nil {
				return fmt.Sprintf("reply: %d %d %s", r.GetStatus().GetCode(), r.GetGrpcStatus().GetStatus(), r.GetBody()), e
			}
			common := m.GetRequestHeaders().GetResponse()
			if common == nil {
				common = m.GetRequestBody().GetResponse()
			}
			if x.FromRelay() && !slices.Contains(common.GetHeaderMutation().GetRemoveHeaders(), "x-headgate-relay-token") &&
				len(common.GetHeaderMutation().GetSetHeaders()) > 0 {
				t.Error("the engine gets the relay token")
			}
			for _, h := range common.GetHeaderMutation().GetSetHeaders() {
				switch value := string(h.GetHeader().GetRawValue()); h.GetHeader().GetKey() {
				case "x-gateway-destination-endpoint", "mm-model-id", ":path", "x-gateway-pool-cluster":
					out = append(out, value)
				case "x-headgate-relay-token":
					opened, ok := sealer.Open(value)
					if !ok {
						t.Fatal("the relay token cannot be opened")
					}
					e = opened
				}
			}
			if body := common.GetBodyMutation().GetBody(); body != nil {
				out = append(out, string(body))
			}
		}
	}
	if waits := x.Waits(); waits != "" {
		return "waits for " + waits, e
	}
	return strings.Join(out, " "), e
}

const (
	post   = "headers :method=POST mode=BUFFERED shown=NONE :path=/v1/completions"
	aCall  = "headers :method=POST mode=NONE shown=NONE content-type=application/grpc :path=/some.Service/Method "
	aInfer = "headers :method=POST mode=NONE shown=NONE :path=/v2/models/"
)

// The relay is the last pick if control can load the model elsewhere and the pool allows another
// attempt. Its token contains the target and the client's name of the model.
func TestRelayIsTheLastPick(t *testing.T) {
	plain := func(s *stream.Server) stream.Exchange { return s.ExchangeAt("", objects.Name{}, nil).TakenAt("back") }
	for _, c := range []struct {
		what  string
		lines []string
		x     func(*stream.Server) stream.Exchange
		set   func(*stream.Config)
		to    string
		name  string // model's name in the relay token; empty if there is no token
	}{
		{
			"one copy",
			[]string{post, `body {"model":"text-to-sql"}`},
			plain, nil, address + `,/run/inner.sock {"model":"sql-v2"}`,
			"text-to-sql",
		},
		{"a VModel", []string{post, `body {"model":"sql"}`}, plain, nil, address + `,/run/inner.sock {"model":"sql-v2"}`, "sql"},
		{"a call", []string{aCall + "mm-model-id=mm-1"}, plain, nil, address + ",/run/inner.sock mm-1", "mm-1"},
		{"V2 by REST", []string{aInfer + "runtime/infer"}, plain, nil, address + ",/run/inner.sock mm-1 /v2/models/mm-1/infer", "runtime"},
		{"at a listener", []string{post, `body {"model":"text-to-sql"}`}, func(s *stream.Server) stream.Exchange {
			return s.ExchangeAt("Gateway ns/g chat", objects.Name{}, nil).TakenAt("back")
		}, nil, address + `,/run/inner.sock pool/ns/base {"model":"sql-v2"}`, "text-to-sql"},
		{"a base model, which control does not load", []string{post, `body {"model":"llama"}`}, plain, nil, address, ""},
		{"as many picks as may be tried", []string{post, `body {"model":"text-to-sql"}`}, plain, func(c *stream.Config) {
			c.Settings.EndpointsPerRequest = 1
		}, address + ` {"model":"sql-v2"}`, ""},
		{"no control", []string{post, `body {"model":"text-to-sql"}`}, plain, func(c *stream.Config) { c.Flow = nil }, address +
			` {"model":"sql-v2"}`, ""},
		{"no relay", []string{post, `body {"model":"text-to-sql"}`}, plain, func(c *stream.Config) { c.Relay = "" }, address +
			` {"model":"sql-v2"}`, ""},
		{"an Envoy without a socket for the relay", []string{post, `body {"model":"text-to-sql"}`}, func(s *stream.Server) stream.Exchange {
			return s.ExchangeAt("", objects.Name{}, nil)
		}, nil, address + ` {"model":"sql-v2"}`, ""},
		{"another gateway", []string{post, `body {"model":"text-to-sql"}`}, func(s *stream.Server) stream.Exchange {
			return s.Exchange(stream.Gateway, "base-picker:9002", 0).TakenAt("back")
		}, nil, address + ` {"model":"sql-v2"}`, ""},
	} {
		server, _, sealer := withRelay(t, c.set)
		to, e := sent(t, c.x(server), sealer, c.lines...)
		if to != c.to {
			t.Errorf("%s: it goes to %s, want %s", c.what, to, c.to)
		}
		switch {
		case c.name == "":
			if e.Kind != "" {
				t.Errorf("%s: its token is %+v", c.what, e)
			}
		case e.Kind != relaytoken.Again, e.Back != "back", len(e.Models) != 1 || e.Models[0].Name != c.name, e.Last,
			len(e.Tried) != 1 || e.Tried[0].Endpoint != address || e.Tried[0].At != address,
			e.Tried[0].Model != "sql-v2" && e.Tried[0].Model != "mm-1",
			e.Models[0].Target.Adapter != map[string]string{
				"text-to-sql": "sql-v2", "sql": "sql", "mm-1": "mm-1",
				"runtime": "runtime",
			}[c.name]:
			t.Errorf("%s: its token is %+v", c.what, e)
		}
	}
}

// A request from the relay keeps its target, whatever listener the client called and whatever the
// engine's name of the model is. If the token forbids it, the relay is not among the picks again.
func TestRelayedRequestKeepsItsTarget(t *testing.T) {
	server, _, sealer := withRelay(t, nil)
	again := func(e relaytoken.Request) string { e.Back = "back"; return "x-headgate-relay-token=" + sealer.Seal(e) }
	base := objects.Name{Namespace: "ns", Name: "base"}
	of := func(adapter string) []relaytoken.Model {
		return []relaytoken.Model{{Name: "client's", Target: route.Target{Pool: base, Adapter: adapter}}}
	}
	for _, c := range []struct {
		what  string
		lines []string
		to    string
		again bool
	}{
		{"unchanged", []string{
			post + " " + again(relaytoken.Request{Kind: relaytoken.Sent, Models: of("sql-v2"), Last: true}),
			`body {"model":"sql-v2"}`,
		}, address, false},
		{"under another name", []string{
			post + " " + again(relaytoken.Request{Kind: relaytoken.Sent, Models: of("sql-v2"), Last: true}),
			`body {"model":"sql-v1"}`,
		}, address + ` {"model":"sql-v2"}`, false},
		{"for a VModel", []string{
			post + " " + again(relaytoken.Request{Kind: relaytoken.Sent, Models: of("sql"), Last: true}),
			`body {"model":"old"}`,
		}, address + ` {"model":"sql-v2"}`, false},
		{"the relay may be used again", []string{
			post + " " + again(relaytoken.Request{Kind: relaytoken.Sent, Models: of("sql-v2")}),
			`body {"model":"sql-v2"}`,
		}, address + ",/run/inner.sock", true},
		{"at a listener without the model", []string{
			post + " " +
				again(relaytoken.Request{Kind: relaytoken.Sent, Models: of("sql-v2"), Listener: "Gateway ns/g other", Last: true}),
			`body {"model":"sql-v2"}`,
		}, address + " pool/ns/base", false},
		{
			"for a pool that a route named",
			[]string{post + " " +
				again(relaytoken.Request{Kind: relaytoken.Sent, Models: of("sql-v2"), Given: base, Last: true}), `body {"model":"sql-v2"}`},
			address + " pool/ns/base", false,
		},
		{
			"a call whose message is not read again",
			[]string{"headers :method=POST mode=NONE shown=NONE content-type=application/grpc :path=/inference.GRPCInferenceService/ModelMetadata mm-model-id=mm-9 end " +
				again(relaytoken.Request{Kind: relaytoken.Sent, Models: of("mm-1"), Last: true})},
			address +
				" mm-1", false,
		},
		{
			"V2 by REST",
			[]string{aInfer + "mm-9/infer " + again(relaytoken.Request{Kind: relaytoken.Sent, Models: of("mm-1"), Last: true})},
			address + " mm-1 /v2/models/mm-1/infer", false,
		},
		{
			"for a model without a copy",
			[]string{post + " " +
				again(relaytoken.Request{Kind: relaytoken.Sent, Models: of("gone"), Last: true}), `body {"model":"gone"}`},
			"waits for ns/base/gone, 16 bytes, at most 5m0s", false,
		},
		{
			"a token for the relay itself",
			[]string{post + " " + again(relaytoken.Request{Kind: relaytoken.Again, Models: of("sql-v2")})},
			"reply: 503", false,
		},
		{
			"for two",
			[]string{post + " " + again(relaytoken.Request{Kind: relaytoken.Sent, Models: append(of("a"), of("b")...)})},
			"reply: 503", false,
		},
		{"of another process", []string{post + " x-headgate-relay-token=" +
			relayTokens(t, 'o').Seal(relaytoken.Request{Kind: relaytoken.Sent, Models: of("sql-v2")})}, "reply: 503", false},
		{"a client's", []string{post + " x-headgate-relay-token=1"}, "reply: 503", false},
	} {
		x := server.ExchangeAt("", objects.Name{}, nil).TakenAt("back")
		to, e := sent(t, x, sealer, c.lines...)
		x.End(time.Now())
		if got, _, _ := strings.Cut(to, " 0 {"); got != c.to || (e.Kind == relaytoken.Again) != c.again {
			t.Errorf("%s: it goes to %s with %+v, want %s", c.what, to, e, c.to)
		}
	}
	// The path was already rewritten when the client's request arrived.
	rewritten := server.ExchangeAt("", base, &wire.Rewrite{Prefix: "/v2", With: "/x"}).TakenAt("back")
	if to, _ := sent(t, rewritten, sealer, aInfer+"mm-9/infer "+
		again(relaytoken.Request{Kind: relaytoken.Sent, Models: of("mm-1"), Last: true})); to != address+" mm-1 /v2/models/mm-1/infer" {
		t.Errorf("at a route that rewrites the path it goes to %s", to)
	}
	// A relay token is ignored if another gateway sends it.
	x := server.Exchange(stream.Gateway, "base-picker:9002", 0)
	if to, _ := sent(t, x, sealer, post+" "+again(relaytoken.Request{Kind: relaytoken.Sent, Models: of("mm-1")}),
		`body {"model":"text-to-sql"}`); to != address+` {"model":"sql-v2"}` {
		t.Errorf("another gateway's goes to %s", to)
	}
	// Errors contain the client's name of the model.
	x = server.ExchangeAt("", objects.Name{}, nil).TakenAt("back")
	sent(t, x, sealer, post+" "+again(relaytoken.Request{Kind: relaytoken.Sent, Models: of("gone"), Last: true}), `body {"model":"gone"}`)
	if out := x.Expire(); len(out) != 1 || !strings.Contains(string(out[0].GetImmediateResponse().GetBody()),
		"The model 'client's' could not") {
		t.Errorf("the client gets %v", out)
	}
}

// A call for several models goes only to the relay. Its token contains the targets of all models.
func TestCallForSeveralModelsGoesToTheRelay(t *testing.T) {
	for _, c := range []struct {
		what, headers, to string
		models            []string
		all               bool
		x                 func(*stream.Server) stream.Exchange
	}{
		{"two", "mm-model-id=mm-1 mm-model-id=text-to-sql", "/run/inner.sock", []string{"mm-1 mm-1", "text-to-sql sql-v2"}, false, nil},
		{"an unknown model", "mm-model-id=nobody mm-model-id=mm-1", "/run/inner.sock", []string{"mm-1 mm-1"}, false, nil},
		{
			"all are required, and one is unknown", "mm-required=all mm-model-id=mm-1 mm-model-id=mm-1", "/run/inner.sock",
			[]string{"mm-1 mm-1", "mm-1 mm-1"},
			true, nil,
		},
		{
			"not all are required, and one is unknown", "mm-required=all mm-model-id=mm-1 mm-model-id=nobody",
			"reply: 404 5 model not found", nil,
			false, nil,
		},
		{"none of them", "mm-model-id=noone mm-model-id=nobody", "reply: 404 5 none of the requested models were found", nil, false, nil},
		{"VModels", "mm-vmodel-id=sql mm-vmodel-id=mm-1", "/run/inner.sock", []string{"sql sql"}, false, nil},
		{
			"an Envoy without a socket for the relay", "mm-model-id=mm-1 mm-model-id=text-to-sql",
			"reply: 501 12 This gateway does not support calls for several models.", nil, false, func(s *stream.Server) stream.Exchange {
				return s.ExchangeAt("", objects.Name{}, nil)
			},
		},
		{
			"another gateway", "mm-model-id=mm-1 mm-model-id=text-to-sql",
			"reply: 501 12 This gateway does not support calls for several models.", nil,
			false, func(s *stream.Server) stream.Exchange {
				return s.Exchange(stream.Gateway, "base-picker:9002", 0).TakenAt("back")
			},
		},
	} {
		server, f, sealer := withRelay(t, nil)
		x := server.ExchangeAt("", objects.Name{}, nil).TakenAt("back")
		if c.x != nil {
			x = c.x(server)
		}
		to, e := sent(t, x, sealer, aCall+c.headers)
		var models []string
		for _, m := range e.Models {
			models = append(models, m.Name+" "+m.Target.Adapter)
		}
		if to != c.to || fmt.Sprint(models) != fmt.Sprint(c.models) || e.All != c.all || c.models != nil && e.Kind != relaytoken.Several {
			t.Errorf("%s: to %s with %+v, want %s", c.what, to, e, c.to)
		}
		if n := inFlight(f); n != 0 {
			t.Errorf("%s: %d are in flight", c.what, n)
		}
	}
}

// Calls of ModelMesh's API go to the relay if the relay can reach control. Otherwise they are
// refused.
func TestCallsForControl(t *testing.T) {
	const call = "headers :method=POST mode=NONE shown=NONE content-type=application/grpc :path=/mmesh."
	for _, c := range []struct {
		what, path, to string
		manages        bool
		x              func(*stream.Server) stream.Exchange
	}{
		{"a way", "ModelMesh/getModelStatus", "/run/inner.sock", true, nil},
		{"no way", "ModelMesh/getModelStatus", "reply: 404 12 This gateway serves no such method.", false, nil},
		{"the runtime's own error", "ModelRuntime/loadModel", "reply: 404 12 This gateway serves no such method.", true, nil},
		{
			"another gateway", "ModelMesh/getModelStatus", "reply: 404 12 This gateway serves no such method.", true,
			func(s *stream.Server) stream.Exchange {
				return s.Exchange(stream.Gateway, "base-picker:9002", 0).TakenAt("back")
			},
		},
	} {
		server, _, sealer := withRelay(t, func(s *stream.Config) { s.Manages = c.manages })
		x := server.ExchangeAt("", objects.Name{}, nil).TakenAt("back")
		headers := ""
		if c.x != nil {
			x, headers = c.x(server), " mm-model-id=mm-1"
		}
		to, e := sent(t, x, sealer, call+c.path+headers)
		if to != c.to || (e.Kind == relaytoken.Manage) != (to == "/run/inner.sock") {
			t.Errorf("%s: to %s with %+v, want %s", c.what, to, e, c.to)
		}
	}
}

// V2 REST requests go to the relay if the pool's model runtimes accept only gRPC. Requests that
// extproc itself answers do not.
func TestRESTForGRPCEngines(t *testing.T) {
	f := newFleetOfVModels(fleet.Config{Placed: true}, runtimes)
	f.ApplyPlacement(news(t, f, []string{"loaded=mm-1@" + address}))
	sealer := relayTokens(t, 'k')
	server, _ := newServer(t, f, func(c *stream.Config) {
		c.Flow = flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 20})
		c.Relay, c.RelayTokens, c.Settings.EndpointsPerRequest = "/run/inner.sock", sealer, 3
	})
	for _, c := range []struct{ what, line, to, name string }{
		{"inference", aInfer + "mm-1/infer", "/run/inner.sock mm-1", "mm-1 mm-1"},
		{"for a VModel", aInfer + "runtime/infer", "/run/inner.sock mm-1", "runtime runtime"},
		{
			"a request for the model", "headers :method=GET mode=NONE shown=NONE end :path=/v2/models/mm-1", "/run/inner.sock mm-1",
			"mm-1 mm-1",
		},
		{
			"whether it is ready", "headers :method=GET mode=NONE shown=NONE end :path=/v2/models/mm-1/ready",
			`reply: 200 0 {"name":"mm-1","ready":true}`, "",
		},
		{
			"an unknown model", aInfer + "nobody/infer",
			"reply: 404 0 {\"error\":\"The model 'nobody' does not exist. GET /v1/models lists those that do.\"}", "",
		},
		{"in a pool that accepts REST", aInfer + "sticky/infer", "10.0.3.4:8000,10.0.3.3:8000,10.0.3.2:8000 sticky", ""},
		{"of OpenAI's API", post, "", ""},
	} {
		x := server.ExchangeAt("", objects.Name{}, nil).TakenAt("back")
		to, e := sent(t, x, sealer, c.line)
		x.End(time.Now())
		name := ""
		if e.Kind == relaytoken.Transcode && len(e.Models) == 1 {
			name = e.Models[0].Name + " " + e.Models[0].Target.Adapter
		}
		if to != c.to || name != c.name {
			t.Errorf("%s: to %s with %+v, want %s", c.what, to, e, c.to)
		}
	}
	x := server.ExchangeAt("", objects.Name{}, nil) // its Envoy has no socket for requests from the relay
	if to, _ := sent(t, x, sealer, aInfer+"mm-1/infer"); to != address+" mm-1" {
		t.Errorf("without a relay it goes to %s", to)
	}
}

// At a Gateway the relay is an endpoint of every pool except pools that fail open and pools whose
// engines use TLS. Requests for these pools are handled as if there was no relay. A route to a pool
// does not serve ModelMesh's API.
func TestRelayAtAGateway(t *testing.T) {
	const several = aCall + "mm-model-id=mm-1 mm-model-id=text-to-sql"
	const manage = "headers :method=POST mode=NONE shown=NONE content-type=application/grpc :path=/mmesh.ModelMesh/getModelStatus"
	base := objects.Name{Namespace: "ns", Name: "base"}
	for _, c := range []struct {
		what, line string
		change     func(*objects.Set)
		at         objects.Name // pool that the route names; zero for a listener
		to         string
	}{
		{"one copy at a listener", aCall + "mm-model-id=text-to-sql", nil, objects.Name{}, address +
			",/run/inner.sock sql-v2 calls/ns/base"},
		{"one copy at a route", aCall + "mm-model-id=mm-1", nil, base, address + ",/run/inner.sock mm-1"},
		{"several at a listener", several, nil, objects.Name{}, "/run/inner.sock calls/ns/base"},
		{"several at a route", several, nil, base, "/run/inner.sock"},
		{"one copy in a pool that fails open", aCall + "mm-model-id=mm-1", failsOpen, base, address + " mm-1"},
		{
			"several in a pool that fails open", several, failsOpen, base,
			"reply: 501 12 This gateway does not support calls for several models.",
		},
		{"REST in a pool that fails open", aInfer + "mm-1/infer", failsOpen, base, address + " mm-1"},
		{"one copy behind TLS", aCall + "mm-model-id=mm-1", byTLS, base, address + " mm-1"},
		{"several behind TLS", several, byTLS, base, "reply: 501 12 This gateway does not support calls for several models."},
		{"ModelMesh's API at a listener", manage, nil, objects.Name{}, "reply: 404 12 This gateway serves no such method."},
		{"ModelMesh's API at a route", manage, nil, base, "reply: 404 12 This gateway serves no such method."},
	} {
		f := newFleetOfVModels(fleet.Config{Placed: true}, func(s *objects.Set) {
			if c.change != nil {
				c.change(s)
			}
		})
		f.ApplyPlacement(news(t, f, []string{"loaded=sql-v2@" + address, "loaded=mm-1@" + address}))
		sealer := relayTokens(t, 'k')
		server, _ := newServer(t, f, func(s *stream.Config) {
			s.Flow = flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 20})
			s.Relay, s.RelayTokens, s.Settings.EndpointsPerRequest, s.Manages = "/run/inner.sock", sealer, 3, true
		})
		listener := "Gateway ns/g chat"
		if c.at != (objects.Name{}) {
			listener = ""
		}
		x := server.ExchangeAt(listener, c.at, nil).TakenAt("back")
		to, _ := sent(t, x, sealer, c.line)
		x.End(time.Now())
		if to != c.to {
			t.Errorf("%s: it goes to %s, want %s", c.what, to, c.to)
		}
	}
}

func failsOpen(s *objects.Set) {
	s.Pools[0].Spec.EndpointPickerRef.FailureMode = pool.FailOpen
	runtimes(s)
}

func byTLS(s *objects.Set) {
	settings := v1alpha1.PoolSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "base"}}
	settings.Spec.PoolRef.Name, settings.Spec.EngineTLS = "base", new(v1alpha1.EngineTLS)
	s.Settings = append(s.Settings, settings)
	runtimes(s)
}

// runtimes changes the pods of ns/base into model runtimes.
func runtimes(s *objects.Set) {
	for i := range s.Pods {
		if s.Pods[i].Labels["pool"] == "base" {
			s.Pods[i].Labels = map[string]string{"pool": "base", engine.KindLabel: string(engine.ModelRuntime)}
		}
	}
}
