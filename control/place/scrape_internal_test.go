package place

import (
	"testing"
	"time"

	"github.com/headgate/headgate/control/place/loader"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// The limit of registered adapters comes from the settings; if they set none, from the size of the
// host memory; otherwise from the engine.
func TestLimitOfAdapters(t *testing.T) {
	for _, c := range []struct{ most, host, gpu, want int }{{8, 16, 2, 8}, {0, 16, 2, 16}, {0, 0, 2, 2}, {0, 0, 0, 1}} {
		s := &endpointWorker{adapters: adapters{most: c.most, host: c.host}}
		e := scrapeResult(s, loader.ScrapeResult{Limits: loader.Limits{Adapters: c.gpu}}, time.Time{}).Endpoint
		if e.Slots != c.want || e.GPUAdapters != c.gpu || e.HostAdapters != c.host {
			t.Errorf("of %+v it is %d, %d on the GPU and %d in host memory", c, e.Slots, e.GPUAdapters, e.HostAdapters)
		}
	}
	if e := scrapeResult(&endpointWorker{adapters: adapters{most: 8, host: 16}},
		loader.ScrapeResult{Limits: loader.Limits{Bytes: 1, Adapters: 2}},
		time.Time{}).Endpoint; e.Slots+e.GPUAdapters+e.HostAdapters > 0 {
		t.Errorf("a runtime whose bytes are bounded is seen with %+v", e)
	}
}

// The room of an engine with a model repository comes only from the settings. Limits of adapters do
// not apply to it.
func TestRoomOfARepository(t *testing.T) {
	for _, c := range []struct {
		room        objects.Room
		bytes, size int64
		slots       int
	}{
		{objects.Room{}, 0, 1_000_000, 1},
		{objects.Room{Models: 5}, 0, 1_000_000, 5},
		{objects.Room{Bytes: 100}, 100, 1_000_000, 0},
		{objects.Room{Bytes: 100, DefaultBytes: 7, Models: 5}, 100, 7, 5},
	} {
		for _, kind := range []engine.Kind{engine.MLServer, engine.Triton} {
			s := &endpointWorker{Endpoint: loader.Endpoint{Kind: kind}, adapters: adapters{most: 8, host: 16}, room: c.room}
			e := scrapeResult(s, loader.ScrapeResult{Lists: true, Takes: true, Limits: loader.Limits{Loads: 1}}, time.Time{}).Endpoint
			if e.Bytes != c.bytes || e.DefaultBytes != c.size || e.Slots != c.slots || e.HostAdapters+e.GPUAdapters > 0 {
				t.Errorf("%s with %+v has room for %d bytes of %d each, and %d models", kind, c.room, e.Bytes, e.DefaultBytes, e.Slots)
			}
		}
	}
	if e := scrapeResult(&endpointWorker{Endpoint: loader.Endpoint{Kind: engine.VLLM}, room: objects.Room{Bytes: 100, Models: 5}},
		loader.ScrapeResult{},
		time.Time{}).Endpoint; e.Bytes > 0 || e.Slots != 1 {
		t.Errorf("a vLLM is seen with %+v", e)
	}
}
