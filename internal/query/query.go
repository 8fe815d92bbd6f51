// Package query answers queries about the state of extprocs over HTTP, for extproc and for control,
// and asks them. Package api/admin has the kinds of queries and their answers.
package query

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/internal/listen"
)

// Handlers answer the queries of one extproc, by kind. The body is JSON, or empty. The result is
// encoded as JSON. An error is a sentence for users. Handlers run concurrently.
type Handlers map[string]func(ctx context.Context, body []byte) (result any, err error)

// Kinds returns the kinds of queries that have a handler, sorted.
func (h Handlers) Kinds() []string { return slices.Sorted(maps.Keys(h)) }

// Answer returns the result of a query as JSON.
func (h Handlers) Answer(ctx context.Context, kind string, body []byte) (json.RawMessage, error) {
	handle := h[kind]
	if handle == nil {
		return nil, Unknown(kind)
	}
	result, err := handle(ctx, body)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(result)
	switch {
	case err != nil:
		return nil, err
	case len(text) > admin.MaxResult:
		return nil, fmt.Errorf("the answer has %d bytes, and at most %d are possible", len(text), admin.MaxResult)
	}
	return text, nil
}

// Unknown is the error of an extproc that does not know a kind of query.
func Unknown(kind string) error {
	return fmt.Errorf("this version of extproc cannot answer %q: upgrade it", kind)
}

// Ask returns the answers to a query. An error means that nobody can be asked.
type Ask func(ctx context.Context, kind string, body []byte) (admin.Answers, error)

// Mount serves the queries of every kind on a mux. Program is the name of the program that serves,
// extproc or control. Only callers that reached a loopback address get an answer.
func Mount(mux *http.ServeMux, program string, ask Ask) {
	for pattern, kind := range map[string]string{
		"GET /" + admin.Endpoints: admin.Endpoints, "GET /" + admin.Decisions: admin.Decisions, "POST /" + admin.Explain: admin.Explain,
	} {
		mux.Handle(pattern, OnLoopback(program, func(w http.ResponseWriter, r *http.Request) {
			body, err := bodyOf(kind, r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			answers, err := ask(r.Context(), kind, body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(answers) // the client may have disconnected
		}))
	}
}

// bodyOf returns the body of the query in an HTTP request.
func bodyOf(kind string, r *http.Request) ([]byte, error) {
	switch kind {
	case admin.Decisions:
		id := r.URL.Query().Get("id")
		if id == "" {
			return nil, errors.New("no id: ask for /decisions?id=ID with the x-request-id of a request")
		}
		return json.Marshal(admin.DecisionsQuery{ID: id})
	case admin.Explain:
		body, err := io.ReadAll(io.LimitReader(r.Body, admin.MaxBody+1))
		if len(body) > admin.MaxBody {
			return nil, fmt.Errorf("the request is too large to be explained: its JSON may have %d bytes", admin.MaxBody)
		}
		return body, err
	}
	return nil, nil
}

// OnLoopback serves only callers that reached a loopback address, as kubectl port-forward does, and
// that name it or localhost as the host. A page in a browser whose host name has been pointed to
// 127.0.0.1 names another host. Program is the name of the program that serves.
func OnLoopback(program string, serve http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if ok && listen.IsLocal(at) {
			if _, tcp := at.(*net.TCPAddr); tcp && !namesLoopback(r.Host) {
				http.Error(w, fmt.Sprintf("%s serves %s only at http://localhost and http://127.0.0.1, not at the host %q", program, r.URL.Path, r.Host),
					http.StatusForbidden)
				return
			}
			serve(w, r)
			return
		}
		port := "PORT"
		if tcp, ok := at.(*net.TCPAddr); ok {
			port = strconv.Itoa(tcp.Port)
		}
		http.Error(w, fmt.Sprintf("%s serves %s only on loopback, because it lists models and their endpoints: "+
			"run `kubectl port-forward POD %[3]s` and ask http://localhost:%[3]s%[2]s", program, r.URL.Path, port), http.StatusForbidden)
	})
}

// namesLoopback reports whether the host of a URL, with or without a port, is localhost or a
// loopback address.
func namesLoopback(host string) bool {
	name := (&url.URL{Host: host}).Hostname()
	if name == "localhost" {
		return true
	}
	address, err := netip.ParseAddr(name)
	return err == nil && address.Unmap().IsLoopback()
}
