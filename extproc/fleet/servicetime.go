package fleet

import (
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/objects"
)

// maxServiceTimes bounds of how many models it is remembered how long requests without tokens take; some 400 bytes each.
const maxServiceTimes = 65536

type serviceTimes = lru.Cache[objects.ModelKey, *serviceTime]

// pace is one that learns of one request at a time.
type serviceTime struct {
	learning sync.Mutex
	endpointstate.ServiceTime
}

// Pace is how long tokenless requests for a model take, by a name that engines know it by, in nanoseconds; 0 where that is not known.
func (f *Fleet) ServiceTime(k objects.ModelKey) int64 {
	if p, ok := f.serviceTimes.Get(f.first(k)); ok {
		return p.Nanoseconds()
	}
	return 0
}

// ran learns of how long a request for a model took by itself.
func (f *Fleet) ran(k objects.ModelKey, alone time.Duration) {
	p := remembered(f.serviceTimes, f.first(k))
	p.learning.Lock()
	defer p.learning.Unlock()
	p.Learn(alone)
}
