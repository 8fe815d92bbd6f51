package accesslog

import (
	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/codec"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/engine"
)

// metadata reads a field of an envoy.config.core.v3.Metadata. An entry of filter_metadata replaces
// an earlier one of the same namespace.
func (r *record) metadata(t tag, _ uint64, data []byte) bool {
	if t != 1<<3|length { // filter_metadata
		return true
	}
	namespace, ok := keyOf(data)
	if !ok {
		return false
	}
	var to members
	switch string(namespace) {
	case wire.DestinationNamespace:
		r.lb, to = lb{}, &r.lb
	case wire.PickNamespace:
		r.pick, to = pick{}, &r.pick
	case wire.UsageNamespace:
		r.usage, to = usage{}, &r.usage
	case wire.ErrorNamespace:
		r.error, to = engineError{}, &r.error
	default:
		to = unused{}
	}
	return codec.Fields(data, func(t tag, _ uint64, data []byte) bool {
		return t != 2<<3|length || codec.Fields(data, func(t tag, _ uint64, data []byte) bool { // fields of a google.protobuf.Struct
			if t != 1<<3|length {
				return true
			}
			key, v, ok := member(data)
			to.set(key, v)
			return ok
		})
	})
}

// members are the used keys of a namespace. Set stores the value of a key. A value of the wrong
// type counts as unknown.
type members interface{ set(key []byte, v value) }

type unused struct{}

func (unused) set([]byte, value) {}

// lb are the members of [wire.DestinationNamespace].
type lb struct{ picks []byte }

func (l *lb) set(key []byte, v value) {
	if string(key) == wire.DestinationHeader {
		l.picks = v.text
	}
}

// pick are the members of [wire.PickNamespace], extproc's decision.
type pick struct {
	route, pool, model, id, stored, adapter     []byte
	stream, again, everybody                    bool
	hold, bytes, firstToken, adapterLoad, among engine.Value
}

func (p *pick) set(key []byte, v value) {
	switch string(key) {
	case wire.PickRoute:
		p.route = v.text
	case wire.PickPool:
		p.pool = v.text
	case wire.PickModel:
		p.model = v.text
	case wire.PickID:
		p.id = v.text
	case wire.PickStored:
		p.stored = v.text
	case wire.PickAdapter:
		p.adapter = v.text
	case wire.PickStream:
		p.stream = v.flag
	case wire.PickAgain:
		p.again = v.flag
	case wire.PickEverybody:
		p.everybody = v.flag
	case wire.PickHold:
		p.hold = v.number
	case wire.PickBytes:
		p.bytes = v.number
	case wire.PickFirstToken:
		p.firstToken = v.number
	case wire.PickLoad:
		p.adapterLoad = v.number
	case wire.PickAmong:
		p.among = v.number
	}
}

// usage are the members of [wire.UsageNamespace], which Envoy's filters read from responses.
type usage struct {
	elsewhere, stopping, missing, without []byte
	kind, code                            []byte // of an error
	id, load, output, opened              []byte
	counts                                outcome.Counts
}

func (u *usage) set(key []byte, v value) {
	switch string(key) {
	case wire.UsageElsewhere:
		u.elsewhere = v.text
	case wire.UsageStopping:
		u.stopping = v.text
	case wire.UsageMissing:
		u.missing = v.text
	case wire.UsageWithout:
		u.without = v.text
	case wire.UsageError:
		u.kind = v.text
	case wire.UsageErrorCode:
		u.code = v.text
	case wire.UsageID:
		u.id = v.text
	case wire.UsageLoad:
		u.load = v.text
	case wire.UsageOutput:
		u.output = v.text
	case wire.UsageOpened:
		u.opened = v.text
	case wire.UsagePrompt:
		u.counts.Prompt = v.number
	case wire.UsageCompletion:
		u.counts.Completion = v.number
	case wire.UsageInput:
		u.counts.Input.Tokens = v.number
	case wire.UsageCacheRead:
		u.counts.Input.CacheRead = v.number
	case wire.UsageCacheCreation:
		u.counts.Input.CacheCreation = v.number
	case wire.UsageBegunInput:
		u.counts.Begun.Tokens = v.number
	case wire.UsageBegunCacheRead:
		u.counts.Begun.CacheRead = v.number
	case wire.UsageBegunCacheCreation:
		u.counts.Begun.CacheCreation = v.number
	}
}

// engineError are the members of [wire.ErrorNamespace].
type engineError struct{ message, whole []byte }

func (e *engineError) set(key []byte, v value) {
	switch string(key) {
	case wire.ErrorMessage:
		e.message = v.text
	case wire.ErrorWhole:
		e.whole = v.text
	}
}
