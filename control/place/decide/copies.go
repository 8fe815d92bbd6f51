package decide

import (
	"cmp"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// Key names a model.
type Key = objects.ModelKey

// CopyKey names a copy.
type CopyKey struct {
	Key
	Endpoint string // "ip:port"
}

// Compare orders copies by endpoint, then model.
func (k CopyKey) Compare(l CopyKey) int {
	return cmp.Or(cmp.Compare(k.Endpoint, l.Endpoint), k.Key.Compare(l.Key))
}

// CopyState is how far a copy has come.
type CopyState uint8

const (
	// Queued: it has a place and waits for its turn, or for the room that others leave.
	Queued CopyState = iota
	// Loading: the engine was told to load it.
	Loading
	// Loaded: it answers requests.
	Loaded
	// Draining: no request is sent to it any more, and those that are there may end.
	Draining
	// Unloading: the engine was told to unload it.
	Unloading
)

// CopyStates are the names of the states.
var CopyStates = [...]string{Queued: "queued", Loading: "loading", Loaded: "loaded", Draining: "draining", Unloading: "unloading"}

func (s CopyState) String() string { return CopyStates[s] }

// SizeSource is where a size is known from, the better the greater.
type SizeSource uint8

const (
	// DefaultSize is the engine's, for models of which nothing is known.
	DefaultSize SizeSource = iota
	// HintedSize is what the Model says.
	HintedSize
	// PredictedSize is what the engine said before it loaded the model.
	PredictedSize
	// MeasuredSize is what it said of the loaded model.
	MeasuredSize
)

// SizeSources are the names of the sources.
var SizeSources = [...]string{DefaultSize: "default", HintedSize: "hint", PredictedSize: "predicted", MeasuredSize: "measured"}

// Copy is one model at one endpoint.
type Copy struct {
	CopyKey
	State CopyState
	// Since is when it came into its state.
	Since time.Time
	// Bytes is what it is taken to hold.
	Bytes int64
	// Source is where Bytes is known from.
	Source SizeSource
	// Limit is how many requests it takes at once; 0: as many as come.
	Limit int

	// cut: an earlier process told the engine to load it and did not hear an answer.
	cut bool
	// sizing: the engine was asked to predict its size.
	sizing bool
	// asked is when it should have been loaded, had there been room at once.
	asked time.Time
	// roomless is since when it has waited, with its turn come, for what leaves to make room; zero
	// if it does not.
	roomless time.Time
	// leaving is when its eviction to make room began; zero if it is not being evicted.
	leaving time.Time
	// brief: its requests are short compared with a load, as of the last tick.
	brief bool
	// doomed: it is unloaded as soon as it is loaded.
	doomed bool
	// overdue: its load got no clear answer, and the engine is being told to unload it. It is
	// doomed, and no load any more that counts among those of the engine at once.
	overdue bool
	// slow: it has been loading for longer than loads take at most, at slowAt, and others begin
	// beside it.
	slow   bool
	slowAt time.Time
	// late: the engine has been told to unload it for unloadLimit, and another copy waits for room:
	// it counts as if it stayed.
	late bool
	// claim is what may leave for it.
	claim claim
	// flown is the seconds that requests were in flight there since the last tick, each for itself,
	// and occupied those in which any was; counted up to flying. Presence is the share of the time
	// in which any was, in the mean of loadMean.
	flown, occupied, presence float64
	flying                    time.Time
	// before: it was there when its endpoint began to migrate.
	before bool
	// stays: it may not leave for another model, whatever happens.
	stays bool
	// ranked: it is in its endpoint's order, at rank.
	ranked bool
	rank   rank
	model  *model
	// endpoint is the one that Endpoint names.
	endpoint *endpoint
	// drained: nobody sends requests to it any more, and none is there.
	drained  bool
	inFlight int
}

// Failed reports whether the load of a copy has failed, or was given up, and the engine is being
// told to unload it.
func (c Copy) Failed() bool { return c.State == Loading && c.doomed }
