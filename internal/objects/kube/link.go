package kube

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/objects/kinds"
)

// How long to wait before a request is repeated: after no response, and after a refusal that
// somebody has to fix. The informers' own backoff grows to a minute, which would extend an outage
// by as much.
const (
	again  = 500 * time.Millisecond
	mended = 2 * time.Second
)

// link is the transport to the API server. It repeats a request until it is answered, and tracks
// whether every request is answered. Requests for a kind whose CRD is missing are repeated, too;
// they are treated as answered, unless the API server lacks all CRDs that are not optional. link is
// for requests without a body. It is safe for concurrent use. Make one with [newLink].
type link struct {
	next http.RoundTripper
	log  *slog.Logger
	// readable is called when it changes whether all objects are known and every request is
	// answered.
	readable func(ok bool)
	defined  []kinds.Kind // kinds that need a CRD

	mu       sync.Mutex      // guards the fields below
	failing  map[string]int  // status of the last failure by path, 0 without a response
	absent   map[string]bool // CRDs that the API server lacks
	synced   bool            // all objects have been listed at least once
	reported bool            // last argument of readable
}

func newLink(table []kinds.Kind, log *slog.Logger, readable func(ok bool)) *link {
	l := &link{log: log, readable: readable, failing: make(map[string]int), absent: make(map[string]bool)}
	for _, k := range table {
		if k.CRD() != "" {
			l.defined = append(l.defined, k)
		}
	}
	return l
}

// kindAt returns the kind with a CRD at a path, for one namespace or all; nil if there is none.
func (l *link) kindAt(path string) *kinds.Kind {
	for i := range l.defined {
		k := &l.defined[i]
		if strings.Contains(path, "/apis/"+k.GroupVersion().String()+"/") && strings.HasSuffix(path, "/"+k.Resource.Resource) {
			return k
		}
	}
	return nil
}

// RoundTrip implements [http.RoundTripper].
func (l *link) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		response, err := l.next.RoundTrip(r)
		if r.Context().Err() != nil { // the caller has left
			return response, err
		}
		switch {
		case err != nil:
			l.note(r.URL.Path, 0, "err", err.Error())
		case response.StatusCode == http.StatusGone: // too old: everything is listed again
		case response.StatusCode >= http.StatusBadRequest:
			l.note(r.URL.Path, response.StatusCode, "status", response.Status, "hint", hints[response.StatusCode])
		default:
			l.note(r.URL.Path, response.StatusCode)
		}
		pause := again
		if err == nil {
			if response.StatusCode == http.StatusUnauthorized { // the token may have expired: the caller's next request has a new one
				_ = wait(r.Context(), mended)
				return response, nil
			}
			if hints[response.StatusCode] != "" {
				pause = mended
			} else if response.StatusCode < http.StatusInternalServerError {
				return response, nil
			}
			_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16)) // read the rest, so that the connection can be reused
			_ = response.Body.Close()
		}
		if err := wait(r.Context(), pause); err != nil {
			return nil, err
		}
	}
}

// hints say what to do about a response that persists until somebody fixes its cause.
var hints = map[int]string{
	http.StatusUnauthorized: "the API server does not accept the credentials: check the kubeconfig, or the pod's service account",
	http.StatusForbidden:    "the service account may not read it: kubectl apply the RBAC rules in manifests",
	http.StatusNotFound:     "the API server has no such kind: kubectl apply -k manifests/crds",
}

// note records the result of a request for a path; wrong is empty on success.
func (l *link) note(path string, status int, wrong ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kindAt(path)
	switch {
	case k != nil && status == http.StatusNotFound:
		delete(l.failing, path)
		if l.absent[k.CRD()] {
			break
		}
		l.absent[k.CRD()] = true
		if k.Optional {
			l.log.Debug("the API server lacks an optional kind of object", "kind", k.Kind, "crd", k.CRD())
		} else {
			l.log.Warn("the API server lacks a kind of object; Headgate reads its objects once the kind exists", "kind", k.Kind, "crd", k.CRD(),
				"hint", hints[status])
		}
	case len(wrong) == 0:
		delete(l.failing, path)
		if k != nil && l.absent[k.CRD()] {
			delete(l.absent, k.CRD())
			l.log.Info("the API server has the kind of object now", "kind", k.Kind)
		}
	default:
		if was, failing := l.failing[path]; !failing || was != status {
			l.failing[path] = status
			l.log.Warn("cannot read objects from the API server; keeping the last ones; retrying",
				append([]any{"path", path}, wrong...)...)
		}
	}
	l.report()
}

// lacks reports whether the API server lacks the CRD of a kind but has another one.
func (l *link) lacks(k kinds.Kind) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.absent[k.CRD()] && !l.bare()
}

// bare reports whether the API server lacks all CRDs that are not optional: they are not applied
// yet, or it is the wrong server. The caller holds mu.
func (l *link) bare() bool {
	needs := false
	for i := range l.defined {
		if k := &l.defined[i]; !k.Optional {
			if needs = true; !l.absent[k.CRD()] {
				return false
			}
		}
	}
	return needs
}

// sync records that all objects are known.
func (l *link) sync() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.synced = true
	l.report()
}

// report calls readable if its argument has changed. The caller holds mu.
func (l *link) report() {
	ok := l.synced && len(l.failing) == 0 && !l.bare()
	if ok == l.reported {
		return
	}
	l.reported = ok
	if ok {
		l.log.Info("read all objects from the API server")
	}
	l.readable(ok)
}

// wait waits for d, or returns the error of ctx if that ends first.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
