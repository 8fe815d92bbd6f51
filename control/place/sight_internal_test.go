package place

import (
	"testing"
	"time"

	"github.com/headgate/headgate/control/place/load"
)

// How many adapters may be registered the settings say, else what host memory holds, else the engine.
func TestHowManyAdaptersMayBeRegistered(t *testing.T) {
	for _, c := range []struct{ most, host, gpu, want int }{{8, 16, 2, 8}, {0, 16, 2, 16}, {0, 0, 2, 2}, {0, 0, 0, 1}} {
		s := &site{adapters: adapters{most: c.most, host: c.host}}
		e := sight(s, load.Seen{Limits: load.Limits{Adapters: c.gpu}}, time.Time{}).Endpoint
		if e.Slots != c.want || e.GPUAdapters != c.gpu || e.HostAdapters != c.host {
			t.Errorf("of %+v it is %d, %d on the GPU and %d in host memory", c, e.Slots, e.GPUAdapters, e.HostAdapters)
		}
	}
	if e := sight(&site{adapters: adapters{most: 8, host: 16}}, load.Seen{Limits: load.Limits{Bytes: 1, Adapters: 2}}, time.Time{}).Endpoint; e.Slots+e.GPUAdapters+e.HostAdapters > 0 {
		t.Errorf("a runtime whose bytes are bounded is seen with %+v", e)
	}
}
