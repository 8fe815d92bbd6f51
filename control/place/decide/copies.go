package decide

import (
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// Key names a model.
type Key = objects.ModelKey

// CopyKey, CopyState, Leaving and Switch are shared with extproc.
type (
	CopyKey   = objects.CopyKey
	CopyState = objects.CopyState
	Leaving   = objects.Leaving
	Switch    = objects.Switch
)

// The states of a copy, in order.
const (
	Gone      = objects.Gone
	Queued    = objects.Queued
	Loading   = objects.Loading
	Loaded    = objects.Loaded
	Draining  = objects.Draining
	Unloading = objects.Unloading
)

// SizeSource is the source of a size, ordered by reliability, the best last.
type SizeSource uint8

const (
	// DefaultSize is the engine's default size for unknown models.
	DefaultSize SizeSource = iota
	// HintedSize is the size in the Model object.
	HintedSize
	// PredictedSize is the engine's prediction before the load.
	PredictedSize
	// MeasuredSize is the size that the engine reports for the loaded model.
	MeasuredSize
)

// SizeSources are the names of the sources.
var SizeSources = [...]string{DefaultSize: "default", HintedSize: "hint", PredictedSize: "predicted", MeasuredSize: "measured"}

// Copy is one model at one endpoint.
type Copy struct {
	CopyKey
	State CopyState
	// Since is when the copy entered its state.
	Since time.Time
	// Bytes is the memory that the copy is assumed to use.
	Bytes int64
	// Source is the source of Bytes.
	Source SizeSource
	// Limit is the most requests that the copy takes at once; 0 means no limit.
	Limit int

	// interrupted: an earlier process told the engine to load it and did not receive the answer.
	interrupted bool
	// predicting: the engine was asked to predict its size.
	predicting bool
	// asked is when it would have been loaded if there had been room.
	asked time.Time
	// waitsForRoomSince is since when the copy, whose turn has come, has waited for evictions; zero
	// if it does not.
	waitsForRoomSince time.Time
	// leaving is when its eviction began; zero if it is not being evicted.
	leaving time.Time
	// brief: at the last tick, its requests were short compared with a load.
	brief bool
	// doomed: it is unloaded as soon as it is loaded.
	doomed bool
	// overdue: its load ended without a clear answer, and the engine is being told to unload it. It
	// is doomed, and does not count among the engine's concurrent loads any more.
	overdue bool
	// slow: at slowAt it was still loading after the longest normal load time, and other loads
	// start beside it.
	slow   bool
	slowAt time.Time
	// late: its unload has taken unloadLimit while another copy waits for room, so it counts as if
	// it stayed.
	late bool
	// claim says what may be evicted for it.
	claim claim
	// inFlightSeconds is the sum of the seconds that requests were in flight there since the last
	// tick. occupied are the seconds in which at least one was. Both are counted up to flying.
	// presence is the share of the time with at least one, averaged over loadMean.
	inFlightSeconds, busySeconds, presence float64
	countedUpTo                            time.Time
	// beforeMigration: it existed when its endpoint began to migrate.
	beforeMigration bool
	// mustStay: it must not be evicted.
	mustStay bool
	// ranked: it is in its endpoint's eviction order, at rank.
	ranked bool
	rank   rank
	model  *model
	// endpoint is the endpoint that Endpoint names.
	endpoint *endpoint
	// drained: it gets no requests any more, and has none in flight.
	drained  bool
	inFlight int
}

// Failed reports whether the load of a copy failed or was abandoned, and the engine is being told
// to unload it.
func (c Copy) Failed() bool { return c.State == Loading && c.doomed }
