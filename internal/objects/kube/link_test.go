package kube

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// trip is a RoundTripper.
type trip func(*http.Request) (*http.Response, error)

func (t trip) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

func answer(status int) *http.Response {
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: io.NopCloser(strings.NewReader(""))}
}

// The informers' own waits grow to a minute: after an outage that long the first answer would be as late.
func TestAfterALongOutageTheFirstAnswerIsSeenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		back := begun.Add(2 * time.Minute)
		var told []bool
		l := &link{log: slog.New(slog.DiscardHandler), failing: make(map[string]int), readable: func(ok bool) { told = append(told, ok) }}
		l.next = trip(func(*http.Request) (*http.Response, error) {
			switch since := time.Since(back); {
			case since < 0:
				return nil, errors.New("connection refused")
			case since < time.Second:
				return answer(http.StatusServiceUnavailable), nil
			}
			return answer(http.StatusOK), nil
		})
		l.sync()
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://x/api/v1/pods?watch=true", nil)
		response, err := l.RoundTrip(r)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", response, err)
		}
		if late := time.Since(back) - time.Second; late > time.Second {
			t.Errorf("the answer comes %v after the API server is back", late)
		}
		if len(told) != 3 || !told[0] || told[1] || !told[2] {
			t.Errorf("it is told readable %v", told)
		}
	})
}

func TestARequestThatNobodyWaitsForEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{log: slog.New(slog.DiscardHandler), failing: make(map[string]int), readable: func(bool) {}}
		l.next = trip(func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") })
		const patience = 10*time.Second + again/2
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "https://x/api/v1/pods", nil)
		begun := time.Now()
		if response, err := l.RoundTrip(r); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, %v", response, err)
		}
		if took := time.Since(begun); took != patience {
			t.Errorf("it ends after %v", took)
		}
	})
}

// The token of a request may have run out while it was made again and again: whoever asks has a new one by then, and puts it
// on a new request.
func TestARequestWhoseTokenRanOutIsMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged strings.Builder
		l := &link{log: slog.New(slog.NewTextHandler(&logged, nil)), failing: make(map[string]int), readable: func(bool) {}}
		began, tries := time.Now(), 0
		l.next = trip(func(_ *http.Request) (*http.Response, error) {
			if tries++; time.Since(began) < time.Minute {
				return nil, errors.New("connection refused")
			}
			return answer(http.StatusUnauthorized), nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "https://x/api/v1/pods", nil)
		response, err := l.RoundTrip(r)
		if err != nil || response.StatusCode != http.StatusUnauthorized || time.Since(began) > time.Minute+5*time.Second {
			t.Errorf("after %v: %v, %v", time.Since(began), response, err)
		}
		if tries < 100 || strings.Count(logged.String(), "\n") != 2 || !strings.Contains(logged.String(), "look at the kubeconfig") {
			t.Errorf("%d tries, and it is told only that %s", tries, logged.String())
		}
	})
}

// One kind that is not answered is enough: what there is of it is not known.
func TestOneKindThatIsRefusedIsToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ok, mended atomic.Bool
		var logged strings.Builder
		l := &link{log: slog.New(slog.NewTextHandler(&logged, nil)), failing: make(map[string]int), readable: ok.Store}
		l.next = trip(func(r *http.Request) (*http.Response, error) {
			if !mended.Load() && strings.HasSuffix(r.URL.Path, "models") {
				return answer(http.StatusForbidden), nil
			}
			return answer(http.StatusOK), nil
		})
		l.sync()
		ask := func(path string) <-chan struct{} {
			done := make(chan struct{})
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://x/apis/"+path, nil)
			go func() {
				defer close(done)
				_, _ = l.RoundTrip(r)
			}()
			synctest.Wait()
			return done
		}
		<-ask("pods")
		if !ok.Load() {
			t.Error("pods are answered, and it is told otherwise")
		}
		done := ask("models")
		<-ask("pods")
		if ok.Load() || !strings.Contains(logged.String(), "kubectl apply the RBAC rules") {
			t.Errorf("models are refused; it is told readable %v, and logged %s", ok.Load(), logged.String())
		}
		mended.Store(true)
		if <-done; !ok.Load() {
			t.Error("all is answered, and it is told otherwise")
		}
	})
}
