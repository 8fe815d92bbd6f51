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

// How long a request waits before it is made again: one that the API server did not answer, and one that it refused until
// somebody mends that. The informers' own waits grow to a minute: an outage would go on that long after its end.
const (
	again  = 500 * time.Millisecond
	mended = 2 * time.Second
)

// link is how the API server is reached by those who follow it: it makes a request again until it is answered, and knows
// whether all that is asked for is answered. A kind whose CRD the API server does not have is asked for again and again, too, and
// is taken as answered, unless the API server has none of the CRDs, optional ones apart. It is for requests without a body. It is safe for concurrent
// use. Make one with [newLink].
type link struct {
	next http.RoundTripper
	log  *slog.Logger
	// readable is told whether all is known and answered, when that changes.
	readable func(ok bool)
	defined  []kinds.Kind // those that need a CRD

	mu      sync.Mutex      // guards what follows
	failing map[string]int  // paths that were not answered last, 0, or with an error, its status
	absent  map[string]bool // CRDs that the API server does not have
	synced  bool            // all was known once
	told    bool            // what readable was told last
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

// kindAt is the kind that needs a CRD and is at a path, of one namespace or of all; nil if there is none.
func (l *link) kindAt(path string) *kinds.Kind {
	for i := range l.defined {
		k := &l.defined[i]
		if strings.Contains(path, "/apis/"+k.GroupVersion().String()+"/") && strings.HasSuffix(path, "/"+k.Resource.Resource) {
			return k
		}
	}
	return nil
}

// RoundTrip is [http.RoundTripper]'s.
func (l *link) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		response, err := l.next.RoundTrip(r)
		if r.Context().Err() != nil { // nobody waits for it any more
			return response, err
		}
		switch {
		case err != nil:
			l.note(r.URL.Path, 0, "err", err.Error())
		case response.StatusCode == http.StatusGone: // too far behind: all is listed anew
		case response.StatusCode >= http.StatusBadRequest:
			l.note(r.URL.Path, response.StatusCode, "status", response.Status, "hint", hints[response.StatusCode])
		default:
			l.note(r.URL.Path, response.StatusCode)
		}
		pause := again
		if err == nil {
			if response.StatusCode == http.StatusUnauthorized { // its token may have run out: who asks again has a new one
				_ = wait(r.Context(), mended)
				return response, nil
			}
			if hints[response.StatusCode] != "" {
				pause = mended
			} else if response.StatusCode < http.StatusInternalServerError {
				return response, nil
			}
			_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16)) // so that the connection is used again
			_ = response.Body.Close()
		}
		if err := wait(r.Context(), pause); err != nil {
			return nil, err
		}
	}
}

// hints say what to do about an answer that stays the same until somebody does it.
var hints = map[int]string{
	http.StatusUnauthorized: "the API server does not accept the credentials: check the kubeconfig, or the pod's service account",
	http.StatusForbidden:    "the service account may not read it: kubectl apply the RBAC rules in manifests",
	http.StatusNotFound:     "the API server has no such kind: kubectl apply -k manifests/crds",
}

// note keeps how a request for a path went; what is wrong is empty if it went well.
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
			l.log.Debug("the API server lacks a kind of object, which it need not have", "kind", k.Kind, "crd", k.CRD())
		} else {
			l.log.Warn("the API server lacks a kind of object, which is taken up as soon as it has that", "kind", k.Kind, "crd", k.CRD(), "hint", hints[status])
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
			l.log.Warn("cannot read objects from the API server; keeping what it last said; retrying", append([]any{"path", path}, wrong...)...)
		}
	}
	l.tell()
}

// lacks says whether the API server does not have the CRD of a kind, and has that of another.
func (l *link) lacks(k kinds.Kind) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.absent[k.CRD()] && !l.bare()
}

// bare says whether the API server has none of the CRDs but optional ones: they are still to be applied, or it is not the one that is
// meant. The caller holds mu.
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

// sync says that all is known.
func (l *link) sync() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.synced = true
	l.tell()
}

// tell tells whether all is known and answered, if that is new. The caller holds mu.
func (l *link) tell() {
	ok := l.synced && len(l.failing) == 0 && !l.bare()
	if ok == l.told {
		return
	}
	l.told = ok
	if ok {
		l.log.Info("read all objects from the API server")
	}
	l.readable(ok)
}

// wait returns after a time, or with the error of ctx if that ends first.
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
