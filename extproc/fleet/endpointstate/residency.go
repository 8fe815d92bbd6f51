package endpointstate

import (
	"slices"
	"time"

	"github.com/headgate/headgate/internal/engine"
)

// CopyState is what control says of a copy.
type CopyState uint8

const (
	// Nothing is a copy that control says nothing of, or that is gone.
	Nothing CopyState = iota
	Loading
	Loaded
	Unloading
)

// Where adapters are addressable is told by two: control, which drives the engines that it names, and each engine's own
// list. This file is the table of who is believed; it is pure.
//
//	control names    control     the engine's list,                      the copy is
//	the endpoint     says        read by the latest look
//	no               anything    has it                                  addressable
//	no               anything    has it not, or there is none            no copy
//	yes              Loaded      there is none                           addressable, unless a request found it missing since
//	yes              Loaded      has it                                  addressable
//	yes              Loaded      has it not, by an older look            addressable: the look came too early to see it
//	yes              Loaded      has it not, by a later look             vanished: the engine restarted
//	yes              other       anything                                no copy: it comes, or it goes
//
// Base models are the list's alone, and older and later is by when control's word came here.

// standing is what a copy is by that table.
type standing uint8

const (
	absent standing = iota
	addressable
	// vanished is a copy of which control does not know yet that the engine has it no more.
	vanished
)

// facts are all that is known of one adapter at one endpoint.
type facts struct {
	governed bool // control names the endpoint
	word     CopyState
	heard    time.Time // when the word came
	gives    bool      // the engine gives a list
	listed   bool      // which has the adapter
	looked   time.Time // when the look that read it began
	missed   bool      // since the word came a request found the adapter missing at an engine without a list
}

func (b facts) standing() standing {
	switch {
	case !b.governed && b.listed:
		return addressable
	case !b.governed, b.word != Loaded:
		return absent
	case b.gives && !b.listed && b.looked.After(b.heard), !b.gives && b.missed:
		return vanished
	}
	return addressable
}

// said is what control says of one copy.
type reportedCopy struct {
	word  CopyState
	limit int // of requests at once, by all processes; 0: none
	heard time.Time
	// others is how many requests other processes have there.
	others int64
	// told says that control was told that it vanished.
	told bool
	// missed says that a request found it missing since, where the engine gives no list.
	missed bool
}

// listing is an engine's own list.
type listing struct {
	engine.Models
	known  bool      // it was read, or found not to be there
	looked time.Time // when the look that read it began
}

// gives says whether the engine gives a list.
func (l listing) gives() bool { return l.known && !l.Unlisted }

// adapters returns what an endpoint answers to beside its base models, in order, and the copies that vanished.
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
		b := facts{governed: governed, gives: l.gives(), listed: contains(listed, name), looked: l.looked}
		if s := says[name]; s != nil {
			b.word, b.heard, b.missed = s.word, s.heard, s.missed
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
