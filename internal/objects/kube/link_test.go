package kube

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/objects/kinds"
)

// trip is a RoundTripper.
type trip func(*http.Request) (*http.Response, error)

func (t trip) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

func answer(status int) *http.Response {
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: io.NopCloser(strings.NewReader(""))}
}

// The informers' own backoff grows to a minute and would delay recovery after a long outage.
func TestRecoveryAfterALongOutageIsFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		back := begun.Add(2 * time.Minute)
		var reported []bool
		l := &link{log: slog.New(slog.DiscardHandler), failing: make(map[string]int), readable: func(ok bool) {
			reported = append(reported, ok)
		}}
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
		if len(reported) != 3 || !reported[0] || reported[1] || !reported[2] {
			t.Errorf("it is told readable %v", reported)
		}
	})
}

func TestCancelledRequestEnds(t *testing.T) {
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

// A request's token may expire while it is repeated. The caller's new request has a new token.
func TestExpiredTokenIsReplaced(t *testing.T) {
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
		if tries < 100 || strings.Count(logged.String(), "\n") != 2 || !strings.Contains(logged.String(), "check the kubeconfig") {
			t.Errorf("%d tries, and it is told only that %s", tries, logged.String())
		}
	})
}

// One kind without a response is enough to be not readable.
func TestRejectedKindIsReported(t *testing.T) {
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

// A kind whose CRD is missing blocks nothing as long as another non-optional CRD is there. A
// refused request blocks, and so does a missing built-in kind.
func TestMissingCRDBlocksNothing(t *testing.T) {
	for _, row := range []lacking{
		{"all are there", nil, true, nil},
		{"one lacks", map[string]int{"endpointlists": 404}, true, []string{"endpointlists"}},
		{
			"one alone is there",
			map[string]int{"llmroutes": 404, "models": 404, "endpointlists": 404, "inferencepools": 404},
			true,
			[]string{"llmroutes", "models", "endpointlists", "inferencepools"},
		},
		{"none is there", map[string]int{
			"llmroutes": 404, "models": 404, "vmodels": 404, "endpointlists": 404, "poolsettings": 404,
			"inferencepools": 404,
		}, false, nil},
		{"one is forbidden", map[string]int{"models": 403}, false, nil},
		{"one lacks, and one is forbidden", map[string]int{"endpointlists": 404, "models": 403}, false, []string{"endpointlists"}},
		{"an API server without pods is none", map[string]int{"pods": 404}, false, nil},
	} {
		row.tries(t, kinds.All())
		row.tries(t, both) // Gateway API's CRDs do not replace ours
	}
	lacks := []string{"gatewayclasses", "gateways", "listenersets", "httproutes", "grpcroutes", "referencegrants", "backendtlspolicies"}
	without := func(more map[string]int) map[string]int {
		for _, resource := range lacks {
			more[resource] = 404
		}
		return more
	}
	for _, row := range []lacking{
		{"Gateway API lacks", without(map[string]int{}), true, lacks},
		{"Gateway API lacks, and one of ours", without(map[string]int{"models": 404}), true, append([]string{"models"}, lacks...)},
		{"none is there", without(map[string]int{
			"llmroutes": 404, "models": 404, "vmodels": 404, "endpointlists": 404, "poolsettings": 404,
			"inferencepools": 404,
		}), false, nil},
		{"Gateway API is forbidden", map[string]int{"gateways": 403}, false, nil},
		{"Services are forbidden", map[string]int{"services": 403}, false, nil},
		{"an API server without EndpointSlices is none", map[string]int{"endpointslices": 404}, false, nil},
	} {
		row.tries(t, both)
	}
}

// both are the kinds of both tables.
var both = kinds.WithNetwork()

// lacking is a set of failing responses and the expected result.
type lacking struct {
	name     string
	status   map[string]int // HTTP status by resource; other resources succeed
	readable bool
	lacks    []string
}

// tries requests each kind of a table.
func (row lacking) tries(t *testing.T, table []kinds.Kind) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var ok, mended atomic.Bool
		var logged strings.Builder
		l := newLink(table, slog.New(slog.NewTextHandler(&logged, nil)), ok.Store)
		back := time.Now().Add(5 * time.Second)
		l.next = trip(func(r *http.Request) (*http.Response, error) {
			if time.Now().Before(back) { // the API server is down at the start
				return nil, errors.New("connection refused")
			}
			if status := row.status[path.Base(r.URL.Path)]; status != 0 && !mended.Load() {
				return answer(status), nil
			}
			return answer(http.StatusOK), nil
		})
		l.sync()
		var asking sync.WaitGroup
		for _, k := range table {
			at := "/api/v1/"
			if k.Group != "" {
				at = "/apis/" + k.GroupVersion().String() + "/"
			}
			if !k.ClusterScoped {
				at += "namespaces/default/"
			}
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://x/through"+at+k.Resource.Resource, nil)
			asking.Go(func() { _, _ = l.RoundTrip(r) })
		}
		time.Sleep(4 * time.Second)
		if synctest.Wait(); ok.Load() {
			t.Errorf("%s: while the API server is away, it is told readable", row.name)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if ok.Load() != row.readable {
			t.Errorf("%s: readable is %v, want %v; it is logged %s", row.name, ok.Load(), row.readable, logged.String())
		}
		for _, k := range table {
			if is, want := l.lacks(k), slices.Contains(row.lacks, k.Resource.Resource); is != want {
				t.Errorf("%s: %s lacks: %v, want %v", row.name, k.Kind, is, want)
			}
		}
		warnings := len(table) // while the API server is down
		for _, k := range table {
			if status := row.status[k.Resource.Resource]; status != 0 && (status != http.StatusNotFound || !k.Optional) {
				warnings++
			}
		}
		if n := strings.Count(logged.String(), "level=WARN"); n != warnings {
			t.Errorf("%s: there are %d warnings, want %d:\n%s", row.name, n, warnings, logged.String())
		}
		mended.Store(true)
		begun := time.Now()
		asking.Wait()
		if took := time.Since(begun); !ok.Load() || took > mendedWithin {
			t.Errorf("%s: once all is there it is told %v, after %v", row.name, ok.Load(), took)
		}
		for _, k := range table {
			if l.lacks(k) {
				t.Errorf("%s: %s is there and lacks", row.name, k.Kind)
			}
		}
	})
}

// mendedWithin is how soon a newly applied CRD must be noticed.
const mendedWithin = 3 * time.Second
