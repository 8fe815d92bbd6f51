package fleet

import (
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/objects"
)

// maxServiceTimes bounds the models with known service times, about 400 bytes each.
const maxServiceTimes = 65536

type serviceTimes = lru.Cache[objects.ModelKey, *serviceTime]

// serviceTime serializes the updates of a service time.
type serviceTime struct {
	learning sync.Mutex
	endpointstate.ServiceTime
}

// ServiceTime returns the service time of tokenless requests for a model, by any of its engine
// names, in nanoseconds; 0 if unknown.
func (f *Fleet) ServiceTime(k objects.ModelKey) int64 {
	if p, ok := f.serviceTimes.Get(f.first(k)); ok {
		return p.Nanoseconds()
	}
	return 0
}

// ran updates the service time of a model with one sample.
func (f *Fleet) ran(k objects.ModelKey, alone time.Duration) {
	p := remembered(f.serviceTimes, f.first(k))
	p.learning.Lock()
	defer p.learning.Unlock()
	p.Learn(alone)
}
