package loader

import (
	"maps"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

// When a restart is detected, the engine gets all its models again. If a restart goes unnoticed,
// requests go to models that the engine lacks.
func TestRestartIsDetected(t *testing.T) {
	for _, c := range []struct {
		name      string
		had       loadedModels
		there     []string
		forgot    string // unloaded since the list was requested
		restarted bool
		left      loadedModels
	}{
		{"nothing was there", loadedModels{}, nil, "", false, loadedModels{}},
		{"all that was listed is gone", loadedModels{"a": true, "b": true}, nil, "", true, loadedModels{}},
		{"one that was listed stays", loadedModels{"a": true, "b": true}, []string{"b"}, "", false, loadedModels{"b": true}},
		{
			"what was listed is gone, what was loaded since is there",
			loadedModels{"a": true, "b": false},
			[]string{"b"},
			"", true,
			loadedModels{"b": false},
		},
		{"what was loaded since is gone, and nothing was listed", loadedModels{"a": false}, nil, "", true, loadedModels{}},
		{
			"what was loaded since is gone, what was listed is there",
			loadedModels{"a": true, "b": false},
			[]string{"a"},
			"", false,
			loadedModels{"a": true},
		},
		{"it was unloaded meanwhile", loadedModels{"a": true}, nil, "a", false, loadedModels{}},
	} {
		before, there := maps.Clone(c.had), make(map[string]bool)
		for _, id := range c.there {
			there[id] = true
		}
		c.had.note(c.forgot, false)
		if got := c.had.compare(there, before); got != c.restarted || !maps.Equal(c.had, c.left) {
			t.Errorf("%s: %v, and it has %v", c.name, got, c.had)
		}
	}
	h := loadedModels{"a": true}
	h.note("a", true)
	h.note("b", true)
	if !maps.Equal(h, loadedModels{"a": true, "b": false}) {
		t.Errorf("after loads it has %v", h)
	}
}

// A scrape during an unload is no sign of a restart, whether its list still contains the model or
// not.
func TestTorchServeScrapeDuringAnUnload(t *testing.T) {
	for _, early := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			at, there := &site{}, true
			var l *Loader
			look := func() {
				if seen, err := l.Scrape(t.Context(), Record{}); err != nil || seen.Purged {
					t.Errorf("the list goes first %v: %+v, %v", early, seen, err)
				}
			}
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:gosec // in memory
				body, status := `{"models":[]}`, http.StatusOK
				switch {
				case r.Method == http.MethodDelete && r.URL.Path == engine.TorchModel("m"):
					there = !early
					look()
					there = false
				case r.Method == http.MethodGet && r.URL.Path == "/models" && there:
					body = `{"models":[{"modelName":"m"}]}`
				case r.URL.Path == engine.TorchModel("m") && there:
					body = `[{"workers":[{"status":"READY","pid":5}]}]`
				case r.URL.Path != "/models":
					body, status = `{"type":"ModelNotFoundException","message":"no"}`, http.StatusNotFound
				}
				w.WriteHeader(status)
				_, _ = w.Write([]byte(body))
			})}
			listener := at.listen()
			go func() { _ = server.Serve(listener) }()
			var err error
			if l, err = Open(Endpoint{Address: address, Kind: engine.TorchServe, Management: address}, engineclient.Access{Dial: at.dial},
				nil); err != nil {
				t.Fatal(err)
			}
			look()
			if err := l.driver.Unload(t.Context(), "m"); err != nil {
				t.Error(err)
			}
			look()
			look()
			_ = l.Close()
			_ = server.Close()
			time.Sleep(time.Minute)
		})
	}
}

// A scrape that began before an unload and ends after it is no sign of a restart either.
func TestTorchServeScrapeEndsAfterAnUnload(t *testing.T) {
	d := &torchServe{had: loadedModels{}, calls: 1}
	if d.note(0, loadedModels{}, map[string]bool{"gone": true}, []string{"gone"}); len(d.had) > 0 || d.restarted {
		t.Errorf("it has %v", d.had)
	}
}
