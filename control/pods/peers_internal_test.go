package pods

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/headgate/headgate/control/attach/controller"
)

// A control's report is valid while the control sends heartbeats. A heartbeat without another
// report is no change.
func TestReportsOfOtherControlsExpire(t *testing.T) {
	p := Pod{}.Peers("own")
	now := time.Unix(1000, 0)
	tell := func(what string, changes bool, do func()) map[string]controller.Seen {
		t.Helper()
		_, before := p.Seen()
		do()
		seen, after := p.Seen()
		if (before != after) != changes {
			t.Errorf("%s: changes: %v", what, before != after)
		}
		return seen
	}
	const said, again, other = `{"beat":1,"seen":{"ns/g":{"has":"x"}}}`, `{"beat":2,"seen":{"ns/g":{"has":"x"}}}`,
		`{"beat":3,"seen":{"ns/g":{"has":"y"}}}`
	if seen := tell("another control says something", true, func() {
		p.watch(map[string]string{"own": other, "one": said}, now)
	}); len(seen) != 1 || seen["one"]["ns/g"].Has != "x" {
		t.Errorf("%v", seen)
	}
	tell("it says it again", false, func() { p.watch(map[string]string{"one": again}, now.Add(25*time.Second)) })
	tell("it said it 30 s ago", false, func() { p.forget(now.Add(55 * time.Second)) })
	if seen := tell("it says something else", true, func() {
		p.watch(map[string]string{"one": other}, now.Add(55*time.Second))
	}); seen["one"]["ns/g"].Has != "y" {
		t.Errorf("%v", seen)
	}
	tell("the same is read again", false, func() { p.watch(map[string]string{"one": other}, now.Add(80*time.Second)) })
	if seen := tell("it is silent for long", true, func() { p.forget(now.Add(86 * time.Second)) }); len(seen["one"]) > 0 {
		t.Errorf("%v", seen)
	}
	tell("it is silent on", false, func() { p.forget(now.Add(99 * time.Second)) })
	tell("what it says cannot be read", false, func() { p.watch(map[string]string{"one": "{"}, now) })
	if seen := tell("it is taken away", true, func() { p.watch(nil, now) }); len(seen) != 0 {
		t.Errorf("%v", seen)
	}
}

// recorder is an API server that keeps the last patch.
type recorder struct{ patch map[string]map[string]*string }

func (w *recorder) RoundTrip(r *http.Request) (*http.Response, error) {
	w.patch = nil
	if err := json.NewDecoder(r.Body).Decode(&w.patch); err != nil {
		return nil, err
	}
	is := httptest.NewRecorder()
	is.Header().Set("Content-Type", "application/json")
	is.Body.WriteString(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"headgate-envoys"}}`)
	return is.Result(), nil
}

// The report of a control that has ended is removed; that of a running control stays.
func TestReportsOfDeletedControlsAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := new(recorder)
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://127.0.0.1", Transport: server})
		if err != nil {
			t.Fatal(err)
		}
		p := Pod{Client: client, Namespace: "headgate-system"}.Peers("own")
		p.Share(controller.Seen{"ns/g": {Has: "x"}})
		write := func(beat int64) (taken []string) {
			if err := p.write(t.Context(), beat); err != nil {
				t.Fatal(err)
			}
			for name, text := range server.patch["data"] {
				if text == nil {
					taken = append(taken, name)
				}
			}
			if own := server.patch["data"]["own"]; own == nil || !strings.Contains(*own, `{"ns/g":{"has":"x"}}`) {
				t.Errorf("the patch has reports of %v", slices.Collect(maps.Keys(server.patch["data"])))
			}
			return taken
		}
		const nothing = `{"beat":1,"seen":{}}`
		p.watch(map[string]string{"gone": `{"beat":1,"seen":{"ns/g":{"has":"x"}}}`, "idle": nothing}, time.Now())
		if got := write(1); len(got) > 0 {
			t.Errorf("removed at once: %v", got)
		}
		time.Sleep(beatsMissed*beatInterval + time.Second)
		p.watch(map[string]string{"gone": `{"beat":1,"seen":{"ns/g":{"has":"x"}}}`, "idle": `{"beat":2,"seen":{}}`}, time.Now())
		if got := write(2); len(got) > 0 { // the report has not expired yet
			t.Errorf("removed before the report expired: %v", got)
		}
		p.forget(time.Now())
		if got := write(3); !slices.Equal(got, []string{"gone"}) {
			t.Errorf("removed: %v", got)
		}
	})
}

// oneMap is an API server with the ConfigMap of reports. One control wrote a report there and then
// ended.
type oneMap struct{}

func (oneMap) RoundTrip(r *http.Request) (*http.Response, error) {
	is := httptest.NewRecorder()
	is.Header().Set("Content-Type", "application/json")
	const one = `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"namespace":"headgate-system","name":"headgate-envoys","resourceVersion":"1"},"data":{"other":"{\"beat\":1,\"seen\":{\"ns/g\":{\"has\":\"x\"}}}"}}`
	switch q := r.URL.Query(); {
	case q.Get("sendInitialEvents") != "": // not supported by this server
		is.WriteHeader(http.StatusUnprocessableEntity)
		is.Body.WriteString(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
	case q.Get("watch") != "": // a watch without events
		<-r.Context().Done()
		return nil, r.Context().Err()
	case r.Method == http.MethodGet:
		is.Body.WriteString(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[` + one + `]}`)
	default:
		is.Body.WriteString(one)
	}
	return is.Result(), nil
}

// The report of a control that has ended expires even if no event arrives.
func TestReportsOfADeadControlExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := kubernetes.NewForConfig(&rest.Config{
			Host: "http://127.0.0.1", Transport: oneMap{},
			ContentConfig: rest.ContentConfig{ContentType: "application/json"},
		})
		if err != nil {
			t.Fatal(err)
		}
		p := Pod{Client: client, Namespace: "headgate-system", Log: slog.New(slog.DiscardHandler)}.Peers("own")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		time.Sleep(time.Second)
		synctest.Wait()
		if seen, _ := p.Seen(); seen["other"]["ns/g"].Has != "x" {
			t.Errorf("at first the reports are %v", seen)
		}
		time.Sleep((beatsMissed + 2) * beatInterval)
		synctest.Wait()
		if seen, _ := p.Seen(); len(seen["other"]) > 0 {
			t.Errorf("after %d beats there are still reports: %v", beatsMissed+2, seen)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
