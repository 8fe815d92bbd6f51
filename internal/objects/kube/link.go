package kube

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// How long a request waits before it is made again: one that the API server did not answer, and one that it refused until
// somebody mends that. The informers' own waits grow to a minute: an outage would go on that long after its end.
const (
	again  = 500 * time.Millisecond
	mended = 2 * time.Second
)

// link is how the API server is reached by those who follow it: it makes a request again until it is answered, and knows
// whether all that is asked for is answered. It is for requests without a body. It is safe for concurrent use.
type link struct {
	next http.RoundTripper
	log  *slog.Logger
	// readable is told whether all is known and answered, when that changes.
	readable func(ok bool)

	mu      sync.Mutex     // guards what follows
	failing map[string]int // paths that were not answered last, 0, or with an error, its status
	synced  bool           // all was known once
	told    bool           // what readable was told last
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
	http.StatusUnauthorized: "the API server does not know who asks: look at the kubeconfig, or at the pod's service account",
	http.StatusForbidden:    "the service account may not read it: kubectl apply the RBAC rules in manifests",
	http.StatusNotFound:     "the API server has no such kind: kubectl apply -k manifests/crds",
}

// note keeps how a request for a path went; what is wrong is empty if it went well.
func (l *link) note(path string, status int, wrong ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(wrong) == 0 {
		delete(l.failing, path)
	} else if was, failing := l.failing[path]; !failing || was != status {
		l.failing[path] = status
		l.log.Warn("the API server does not say what there is; what it said last stays in force", append([]any{"path", path}, wrong...)...)
	}
	l.tell()
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
	ok := l.synced && len(l.failing) == 0
	if ok == l.told {
		return
	}
	l.told = ok
	if ok {
		l.log.Info("the API server says what there is")
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
