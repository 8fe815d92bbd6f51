package decide

import (
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// Key names a model.
type Key = objects.ModelKey

// CopyKey, CopyState, Leaving and Switch are types that control and extproc share.
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

// SizeSource is the source of a size. Later sources are more reliable.
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
	// Bytes is the memory that the copy is assumed to need.
	Bytes int64
	// Source is the source of Bytes.
	Source SizeSource
	// Limit is the maximum number of concurrent requests of the copy; 0 means no limit.
	Limit int

	// interrupted: an earlier process told the engine to load the copy, and did not receive the
	// answer.
	interrupted bool
	// predicting: the engine was asked to predict the size of the copy.
	predicting bool
	// asked is when the copy would have been loaded if there had been room.
	asked time.Time
	// waitsForRoomSince is when the copy, whose turn has come, began to wait for evictions; zero if
	// it does not wait.
	waitsForRoomSince time.Time
	// leaving is when the eviction of the copy began; zero if it is not being evicted.
	leaving time.Time
	// brief: at the last tick, requests of the copy were short compared with its load time.
	brief bool
	// doomed: the copy is to be unloaded as soon as its load ends.
	doomed bool
	// overdue: the load ended without a clear answer, and the engine is being told to unload the
	// model. An overdue copy is also doomed, and is not counted among the engine's concurrent
	// loads.
	overdue bool
	// slow: the copy was still loading at slowAt, which is the longest normal load time after the
	// load began. Other loads may start beside it.
	slow   bool
	slowAt time.Time
	// late: the unload of the copy has taken unloadLimit, and another copy waits for room. The copy
	// is then treated as if it stayed.
	late bool
	// claim defines what may be evicted for the copy.
	claim claim
	// inFlightSeconds is the sum of the seconds that the copy's requests have been in flight since
	// the last tick. busySeconds is the time in which at least one request was in flight. Both are
	// counted up to countedUpTo. presence is the share of the time with at least one request in
	// flight, averaged over loadMean.
	inFlightSeconds, busySeconds, presence float64
	countedUpTo                            time.Time
	// beforeMigration: the copy existed when its endpoint began to migrate.
	beforeMigration bool
	// mustStay: the copy must not be evicted.
	mustStay bool
	// ranked: the copy is in its endpoint's eviction order, at rank.
	ranked bool
	rank   rank
	model  *model
	// endpoint is the endpoint that Endpoint names.
	endpoint *endpoint
	// drained: the copy gets no new requests, and has none in flight.
	drained  bool
	inFlight int
}

// Failed reports whether the load of a copy failed or was abandoned, and the engine is now being
// told to unload the model.
func (c Copy) Failed() bool { return c.State == Loading && c.doomed }
