package fleet

import (
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/objects"
)

// maxServiceTimes bounds the number of models with known service times, about 400 bytes each.
const maxServiceTimes = 65536

type serviceTimes = lru.Cache[objects.ModelKey, *serviceTime]

// serviceTime is a service time whose updates a mutex serializes.
type serviceTime struct {
	learning sync.Mutex
	endpointstate.ServiceTime
}

// ServiceTime returns the service time in nanoseconds of tokenless requests for a model, by any of
// the engine's names for it; 0 if unknown.
func (f *Fleet) ServiceTime(k objects.ModelKey) int64 {
	if p, ok := f.serviceTimes.Get(f.first(k)); ok {
		return p.Nanoseconds()
	}
	return 0
}

// ran adds a sample to the service time of a model.
func (f *Fleet) ran(k objects.ModelKey, alone time.Duration) {
	p := remembered(f.serviceTimes, f.first(k))
	p.learning.Lock()
	defer p.learning.Unlock()
	p.Learn(alone)
}
