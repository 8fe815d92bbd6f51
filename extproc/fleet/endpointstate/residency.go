package endpointstate

import (
	"slices"
	"time"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// The states of a copy as control reports them. Gone is also a copy that control does not report.
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
// 	no         any        has it              addressable
// 	no         any        lacks it, or none   absent
// 	yes        Loaded     no list             addressable, unless a later request missed it
// 	yes        Loaded     has it              addressable
// 	yes        Loaded     lacks it, older     addressable: the scrape was too early
// 	yes        Loaded     lacks it, newer     vanished: the engine restarted
// 	yes        other      any                 absent: being loaded, unloaded, or gone
//
// Older and newer compare the scrape with control's report, by the time when this process received
// the report. Base models depend only on the list.

// standing is the result of that table for a copy.
type standing uint8

const (
	absent standing = iota
	addressable
	// vanished is a copy that the engine has lost without control's knowledge.
	vanished
)

// facts are the inputs of that table for one adapter at one endpoint.
type facts struct {
	governed     bool // control names the endpoint
	state        CopyState
	reportedAt   time.Time // time of control's report
	gives        bool      // the engine has a list
	listed       bool      // the list has the adapter
	listedAt     time.Time // start of the scrape that read the list
	foundMissing bool      // no list; a request after the report found the adapter missing
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
	limit      int // of concurrent requests, by all processes; 0: none
	reportedAt time.Time
	// others is the number of requests of other processes.
	others int64
	// controlKnows reports that control knows that the copy vanished.
	controlKnows bool
	// foundMissing reports that a request found the copy missing at an engine without a list.
	foundMissing bool
}

// listing is the model list of an engine.
type listing struct {
	engine.Models
	known     bool      // read, or found not to exist
	scrapedAt time.Time // start of the scrape that read it
}

// gives reports whether the engine has a list.
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
