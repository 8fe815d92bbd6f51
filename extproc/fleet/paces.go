package fleet

import (
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/objects"
)

// maxPaces bounds of how many models it is remembered how long requests without tokens take; some 400 bytes each.
const maxPaces = 65536

type paces = lru.Cache[objects.ModelKey, *pace]

// pace is one that learns of one request at a time.
type pace struct {
	learning sync.Mutex
	endpointstate.Pace
}

// Pace is how long tokenless requests for a model take, by a name that engines know it by, in nanoseconds; 0 where that is not known.
func (f *Fleet) Pace(k objects.ModelKey) int64 {
	if p, ok := f.paces.Get(f.first(k)); ok {
		return p.Nanoseconds()
	}
	return 0
}

// ran learns of how long a request for a model took by itself.
func (f *Fleet) ran(k objects.ModelKey, alone time.Duration) {
	p := remembered(f.paces, f.first(k))
	p.learning.Lock()
	defer p.learning.Unlock()
	p.Learn(alone)
}
