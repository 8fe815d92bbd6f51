package loader

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/tensorflow"
	"github.com/headgate/headgate/headgate/simulated/repository"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

// An answer that is not in TorchServe's format has an unclear outcome. The test fails if the
// outcome is another, or if the message does not say what to do.
func TestOutcomesAtTorchServe(t *testing.T) {
	const post, get, del = "POST /models", "GET /models/m", "DELETE /models/m"
	const none = `404 {"code":404,"type":"ModelNotFoundException","message":"Model not found: m"}`
	const starting = `200 [{"workers":[{"status":"UNLOADING","pid":5}]}]`
	const another = `200 [{"workers":[{"status":"UNLOADING","pid":6}]}]`
	const serving = `200 [{"workers":[{"status":"READY","pid":5}]}]`
	const disallowed = `405 {"code":405,"type":"MethodNotAllowedException","message":"no"}`
	const token = `400 {"code":400,"type":"InvalidKeyException","message":"no"}`
	for _, c := range []struct {
		name         string
		answers      map[string]string
		load, unload string // expected errors; empty for none
	}{
		{"one that is registered meanwhile", map[string]string{
			get:  none + "\n--\n" + serving + "\n--\n" + none,
			post: `409 {"code":409,"type":"ConflictStatusException","message":"no"}`, del: `200 {}`,
		}, "", ""},
		{
			"a proxy that lost the engine",
			map[string]string{get: none, post: "502 <html>", del: "502 <html>"},
			"unclear: 502: <html>",
			"unclear: 502: <html>",
		},
		{
			"a redirect",
			map[string]string{get: none, post: "307 ", del: "308 "},
			"refused: 307: a redirect, which is not followed",
			"refused: 308: a redirect, which is not followed",
		},
		{"no archive", map[string]string{
			get: none, post: `404 {"type":"ModelNotFoundException","message":"Model not found at: m.mar"}`,
			del: none,
		}, "refused: 404: Model not found at: m.mar", ""},
		{
			"without its model API",
			map[string]string{get: none, post: disallowed, del: disallowed},
			"refused: 405: no: " + torchClosed,
			"refused: 405: no: " + torchClosed,
		},
		{
			"another token",
			map[string]string{get: none, post: token, del: token},
			"refused: 400: no: " + engineclient.WantsToken,
			"refused: 400: no: " + engineclient.WantsToken,
		},
		{
			"another token at once",
			map[string]string{get: token, del: token},
			"refused: 400: no: " + engineclient.WantsToken,
			"refused: 400: no: " + engineclient.WantsToken,
		},
		{"a request that it does not take", map[string]string{
			get: none, post: `400 {"type":"BadRequestException","message":"no"}`,
			del: `403 {"type":"ForbiddenException","message":"no"}`,
		}, "refused: 400: no", "refused: 403: no"},
		{"its own failure", map[string]string{
			get: none, post: `500 {"type":"InternalServerException","message":"no"}`,
			del: `500 {"type":"InternalServerException","message":"no"}`,
		}, "unclear: 500: no", "unclear: 500: no"},
		{
			"one that is unregistered by somebody",
			map[string]string{get: none, post: "202 {}", del: none},
			"refused: somebody unregistered the model while it was loaded", "",
		},
		{
			"a process that ends, of a model that stays",
			map[string]string{get: none + "\n--\n" + starting + "\n--\n" + another, post: "202 {}", del: `200 {}`},
			"unclear: the process that was to serve the model ended: TorchServe's log says why; control cannot unregister it: the engine answered 200: {}, but has the model still",
			"unclear: the engine answered 200: {}, but has the model still",
		},
		{
			"a description that cannot be read in the midst",
			map[string]string{get: none + "\n--\n" + "502 <html>", post: "202 {}", del: `200 {}`},
			"unclear: the engine was loading the model: 502: <html>", "unclear: 502: <html>",
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &scene{T: t, kind: engine.TorchServe, loader: answering(t, engine.TorchServe, c.answers)}
			for what, of := range map[string]struct {
				got  *Error
				want string
			}{"a load": {p.loadIn("m", time.Minute), c.load}, "an unload": {p.unloadIn("m", time.Minute), c.unload}} {
				if of.got == nil && of.want != "" || of.got != nil && said(of.got, "") != of.want {
					t.Errorf("%s: %s: %v, want %q", c.name, what, said(of.got, ""), of.want)
				}
			}
			_ = p.loader.Close()
			time.Sleep(time.Minute)
		})
	}
}

// If TorchServe repeats the token in a message, the driver removes it. The driver asks once per
// incarnation whether TorchServe allows loads.
func TestTorchServeIsAskedOncePerIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulatedEngine(t, engine.TorchServe).(*simulatedEngine)
		l, err := Open(s.endpoint(), s.access(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		p := &scene{T: t, repositoryEngine: s, kind: engine.TorchServe, loader: l}
		p.put("m", repository.Model{})
		p.must("m")
		p.look(Record{}, []string{"m"})
		s.kill()
		s.fixed = true
		s.start()
		if seen, err := l.Scrape(t.Context(), Record{}); err != nil || seen.Takes || !seen.Purged {
			t.Errorf("one that lets nobody load since it began anew: %+v, %v", seen, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		at := &site{}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:gosec // in memory
			w.WriteHeader(http.StatusBadGateway)
			_, _ = w.Write([]byte("no: " + r.Header.Get("Authorization")))
		})}
		listener := at.listen()
		go func() { _ = server.Serve(listener) }()
		access := engineclient.Access{Dial: at.dial, Tokens: engineclient.NewTokens(func() string { return "s3cr3t-token" })}
		l, err := Open(Endpoint{Address: address, Kind: engine.TorchServe, Management: address}, access, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Scrape(t.Context(), Record{}); err == nil || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("a look: %v", err)
		}
		_ = l.Close()
		_ = server.Close()
		time.Sleep(time.Minute)
	})
}

// All pages of the model list are read. An engine without the model API cannot load models, but its
// models are listed.
func TestTorchServeScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := answering(t, engine.TorchServe, map[string]string{
			"GET /models": `200 {"nextPageToken":"1","models":[{"modelName":"a"},{"modelName":"org/m"}]}` + "\n--\n" +
				`200 {"models":[{"modelName":"b"},{"modelName":"c"}]}`,
			"GET /models/a": `200 [{"workers":[{"status":"READY","pid":5}]}]`,
			"GET /models/b": `200 [{"workers":[{"status":"UNLOADING","pid":6}]}]`,
			"GET /models/c": `200 [{"workers":[]}]`, "DELETE /models/" +
				noSuchModel: `405 {"type":"MethodNotAllowedException","message":"no"}`,
		})
		seen, err := l.Scrape(t.Context(), Record{})
		if err != nil || seen.Takes || !seen.Lists || len(seen.Models) != 2 || seen.Models[0] != (Listed{ID: "a"}) ||
			seen.Models[1] != (Listed{ID: "b", State: Loading}) {
			t.Errorf("%+v, %v", seen, err)
		}
		_ = l.Close()
		time.Sleep(time.Minute)
	})
	for answer, want := range map[string]string{
		"502 <html>": "unclear: 502: <html>",
		"200 <html>": "unclear: list of models: invalid character '<' looking for beginning of value",
		`400 {"type":"InvalidKeyException","message":"no"}`: "refused: 400: no: " + engineclient.WantsToken,
	} {
		synctest.Test(t, func(t *testing.T) {
			l := answering(t, engine.TorchServe, map[string]string{"GET /models": answer})
			if _, err := l.Scrape(t.Context(), Record{}); said(err, "") != want {
				t.Errorf("%s: %s, want %s", answer, said(err, ""), want)
			}
			_ = l.Close()
			time.Sleep(time.Minute)
		})
	}
}

// coded is a TensorFlow Serving that answers successive lists with the given codes, and has the
// models of the last list that it accepted.
type coded struct {
	tensorflow.UnimplementedModelServiceServer

	mu    sync.Mutex // guards the fields below
	codes []codes.Code
	has   map[string]bool
	lists [][]string
}

func (s *coded) GetModelStatus(_ context.Context, q *tensorflow.GetModelStatusRequest) (*tensorflow.GetModelStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.has[q.GetModelSpec().GetName()] {
		return nil, status.Error(codes.NotFound, "no")
	}
	available := &tensorflow.ModelVersionStatus{State: tensorflow.ModelVersionStatus_AVAILABLE}
	return &tensorflow.GetModelStatusResponse{ModelVersionStatus: []*tensorflow.ModelVersionStatus{available}}, nil
}

func (s *coded) HandleReloadConfigRequest(_ context.Context, q *tensorflow.ReloadConfigRequest) (*tensorflow.ReloadConfigResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, m := range q.GetConfig().GetModelConfigList().GetConfig() {
		if m.GetBasePath() == "" || m.GetModelPlatform() != "tensorflow" {
			return nil, status.Error(codes.InvalidArgument, "no path or no platform")
		}
		names = append(names, m.GetName())
	}
	s.lists = append(s.lists, names)
	code := codes.OK
	if len(s.codes) > 0 {
		code, s.codes = s.codes[0], s.codes[1:]
	}
	if code != codes.OK {
		return nil, status.Error(code, "no")
	}
	s.has = make(map[string]bool)
	for _, name := range names {
		s.has[name] = true
	}
	return &tensorflow.ReloadConfigResponse{}, nil
}

// If a code is misread, control leaks a model or makes needless calls.
func TestOutcomesAtTFServing(t *testing.T) {
	const call = "HandleReloadConfigRequest: "
	for _, c := range []struct {
		name  string
		codes []codes.Code
		load  string
		lists int
	}{
		{"done", nil, "", 1},
		{"a model that fails", []codes.Code{codes.Unknown}, "refused: " + call + "Unknown: no", 2},
		{"one that fails, and cannot be taken off the list", []codes.Code{codes.Unknown, codes.Unavailable}, "unclear: " + call +
			"Unknown: no; control cannot take it off the list: " + call + "Unavailable: no", 2},
		{"a list that is not taken", []codes.Code{codes.InvalidArgument}, "refused: " + call + "InvalidArgument: no", 1},
		{"another platform", []codes.Code{codes.FailedPrecondition}, "refused: " + call + "FailedPrecondition: no", 1},
		{"another token", []codes.Code{codes.Unauthenticated}, "refused: " + call + "Unauthenticated: no: " + engineclient.WantsToken, 1},
		{"no right", []codes.Code{codes.PermissionDenied}, "refused: " + call + "PermissionDenied: no: " + engineclient.WantsToken, 1},
		{"another port", []codes.Code{codes.Unimplemented}, "refused: " + call + "Unimplemented: no: " + tfAbsent, 1},
		{"a connection that broke", []codes.Code{codes.Unavailable}, "unclear: " + call +
			"Unavailable: no; the engine finds no version of the model, and takes no other list until it does: is there a folder with a number for its name in /models/m?", 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			at, s, server := &site{}, &coded{codes: c.codes}, grpc.NewServer()
			tensorflow.RegisterModelServiceServer(server, s)
			listener := at.listen()
			go func() { _ = server.Serve(listener) }()
			defer server.Stop()
			l, err := Open(Endpoint{Address: address, Kind: engine.TFServing}, engineclient.Access{Dial: at.dial}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			p := &scene{T: t, kind: engine.TFServing, loader: l}
			p.look(Record{}, nil)
			failed := p.loadIn("m", time.Minute)
			if failed == nil && c.load != "" || failed != nil && said(failed, "") != c.load || len(s.lists) != c.lists {
				t.Errorf("%s: %s, with %d lists, want %q with %d", c.name, said(failed, ""), len(s.lists), c.load, c.lists)
			}
			p.done(c.name+": an unload", p.unloadIn("m", time.Minute))
			p.must("other")
			sent := len(s.lists)
			p.done(c.name+": an unload again", p.unloadIn("m", time.Minute))
			if len(s.lists) != sent {
				t.Errorf("%s: a list is sent for a model that is not there", c.name)
			}
			if last := s.lists[len(s.lists)-1]; len(last) != 1 || last[0] != "other" {
				t.Errorf("%s: the last list is %v", c.name, last)
			}
		})
	}
}
