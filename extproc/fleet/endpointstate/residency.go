package endpointstate

import (
	"slices"
	"time"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// The states of a copy that control reports. A copy without a report is Gone, too.
const (
	Gone      = objects.Gone
	Loading   = objects.Loading
	Loaded    = objects.Loaded
	Unloading = objects.Unloading
)

// Two sources report which adapters an endpoint serves: control, for the endpoints that it manages,
// and each engine's own list. The following table combines them. It is pure.
//
// 	control    control's  list in the         the copy is
// 	manages it reports    latest scrape
// 	no         any        has the copy        addressable
// 	no         any        lacks it, or none   absent
// 	yes        Loaded     no list             addressable, unless a later request missed it
// 	yes        Loaded     has the copy        addressable
// 	yes        Loaded     lacks it, older     addressable: the scrape was too early
// 	yes        Loaded     lacks it, newer     vanished: the engine restarted
// 	yes        other      any                 absent: being loaded, unloaded, or gone
//
// Older and newer compare the start of the scrape with the time when this process received
// control's report. Base models depend only on the list.

// standing is a result of the table above for one copy.
type standing uint8

const (
	absent standing = iota
	addressable
	// vanished means that the engine has lost the copy and control does not know it.
	vanished
)

// facts are the inputs of the table above for one adapter at one endpoint.
type facts struct {
	governed     bool // control manages the endpoint
	state        CopyState
	reportedAt   time.Time // time when control's report arrived
	gives        bool      // the engine has a list
	listed       bool      // the list has the adapter
	listedAt     time.Time // start of the scrape that read the list
	foundMissing bool      // the engine has no list; a request after control's report found the adapter missing
}

func (b facts) standing() standing {
	switch {
	case !b.governed && b.listed:
		return addressable
	case !b.governed, b.state != Loaded:
		return absent
	case b.gives && !b.listed && b.listedAt.After(b.reportedAt), !b.gives && b.foundMissing:
		return vanished
	}
	return addressable
}

// reportedCopy is control's report of one copy.
type reportedCopy struct {
	state      CopyState
	limit      int // limit of concurrent requests of all processes; 0: no limit
	reportedAt time.Time
	// others is the number of requests in flight of other processes.
	others int64
	// controlKnows reports that control knows that the copy vanished.
	controlKnows bool
	// foundMissing reports that a request found the copy missing at an engine without a list.
	foundMissing bool
}

// listing is the model list of an engine.
type listing struct {
	engine.Models
	known     bool      // whether the list was read, or found not to exist
	scrapedAt time.Time // start of the scrape that read it
}

// gives is true if the engine provides a list of models.
func (l listing) gives() bool { return l.known && !l.Unlisted }

// adapters returns the sorted adapters that an endpoint serves, and the copies that vanished.
func adapters(governed bool, says map[string]*reportedCopy, l listing) (there, gone []string) {
	listed := slices.Sorted(slices.Values(l.Adapters))
	names := slices.Clone(listed)
	if governed {
		for name := range says {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		b := facts{governed: governed, gives: l.gives(), listed: contains(listed, name), listedAt: l.scrapedAt}
		if s := says[name]; s != nil {
			b.state, b.reportedAt, b.foundMissing = s.state, s.reportedAt, s.foundMissing
		}
		switch b.standing() {
		case addressable:
			there = append(there, name)
		case vanished:
			gone = append(gone, name)
		}
	}
	return there, gone
}
