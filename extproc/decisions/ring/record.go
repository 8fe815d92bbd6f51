package ring

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
)

// maxText is the maximum length of a text in a record, in bytes. Clients choose some of these
// texts. Names of objects are shorter.
const maxText = 512

// Wait is why a request waited.
type Wait uint8

// The reasons to wait. A request that waited for several reasons has the last one.
const (
	NoWait          Wait = iota
	WaitForModel         // no endpoint had a copy of the model that could be used, or earlier requests waited for it
	WaitAtLimit          // every copy of the model was at its concurrency limit
	WaitToAsk            // nothing admits the model, and control was asked whether it has just been added
	WaitForEndpoint      // no endpoint of the pool could get requests
	WaitForRoom          // no engine could start the request at once
	WaitForTurn          // other requests of the pool went first
)

// Reason returns the reason as a label: "endpoint", "copy", "room", "turn" or "control"; empty for
// NoWait.
func (w Wait) Reason() string {
	return [...]string{
		WaitForModel: "copy", WaitAtLimit: "copy", WaitToAsk: "control", WaitForEndpoint: "endpoint", WaitForRoom: "room",
		WaitForTurn: "turn",
	}[w]
}

// Decision is the decision about a request, without the candidates.
type Decision struct {
	ID          []byte // x-request-id
	At          time.Time
	Route, Pool string
	Asked       string // the client's name of the model
	VModel      string // the VModel that the client's name means; empty if there is none
	Model       string // the engine's name of the model
	Fallback    string // name of the fallback that serves the request; empty if none does
	Waited      time.Duration
	Why         Wait
	Band        int32 // priority of the route
	Policy      pick.Rule
	// Unpredicted means that policy Latency has no trusted predictions yet, so that Proposal
	// decided.
	Unpredicted bool
	Tokenless   bool
	// Prompt and Output are the request's tokens, as far as the policy estimated them.
	Prompt, Output int
	// Relay means that the relay is the last destination, and Again that the request came from it.
	Relay, Again bool
	// Code is the error with which extproc refused the request; empty if it did not. Status is its
	// HTTP status, and Message what the client was told.
	Code, Message string
	Status        int
}

// Candidate is an endpoint that the policy considered.
type Candidate struct {
	Endpoint, Reason string
	State            pick.State
	// Requests is the number of requests at the endpoint without this one, and ForAdapter those of
	// them for the adapter; -1 for a base model. Adapters is the number of adapters with requests.
	Requests, ForAdapter, Adapters int64
	// Estimate is the prediction; zero if there is none.
	Estimate pick.Estimate
}

// CandidateOf returns the candidate of a decision that has not been counted yet.
func CandidateOf(d *pick.Decision) Candidate {
	c := Candidate{
		Endpoint: d.Endpoint.Address, Reason: d.Reason, State: d.Endpoint.State, Requests: d.Endpoint.Pending(), ForAdapter: -1,
		Adapters: d.Endpoint.ActiveAdapters(), Estimate: d.Estimate,
	}
	if !d.Copy.Base {
		c.ForAdapter = d.Copy.InFlight.Load() + d.Copy.InFlight.Others.Load()
	}
	return c
}

// The bits of a decision.
const (
	unpredicted = 1 << iota
	tokenless
	relay
	again
)

func bit(is bool, of byte) byte {
	if is {
		return of
	}
	return 0
}

// Append encodes a decision. [Candidate.Append] then appends its candidates: first the endpoints
// that the data plane may try, in order, and then the others.
func (d *Decision) Append(b []byte, picked, others int) []byte {
	b = appendText(b, d.ID)
	b = appendNumber(b, d.At.UnixNano())
	for _, text := range [...]string{d.Route, d.Pool, d.Asked, d.VModel, d.Model, d.Fallback, d.Code, d.Message} {
		b = appendText(b, text)
	}
	b = append(b, byte(d.Why), byte(d.Policy), bit(d.Unpredicted, unpredicted)|bit(d.Tokenless, tokenless)|bit(d.Relay, relay)|
		bit(d.Again, again))
	for _, n := range [...]int64{
		int64(d.Band), int64(d.Waited), int64(d.Prompt), int64(d.Output), int64(d.Status), int64(picked), int64(others),
	} {
		b = appendNumber(b, n)
	}
	return b
}

// Append encodes a candidate.
func (c *Candidate) Append(b []byte) []byte {
	b = appendText(appendText(b, c.Endpoint), c.Reason)
	b = append(b, byte(c.State))
	for _, n := range [...]int64{c.Requests, c.ForAdapter, c.Adapters} {
		b = appendNumber(b, n)
	}
	is := &c.Estimate
	if *is == (pick.Estimate{}) {
		return append(b, 0)
	}
	b = append(b, 1, byte(is.Adapter))
	for _, f := range [...]float64{
		is.FrontendOverhead, is.Queue, is.Room, is.Load, is.Prefill, is.Delay, is.Step, is.Longer, is.Own, is.Others,
	} {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(f)))
	}
	return b
}

// Outcome is the outcome of a request.
type Outcome struct {
	Endpoint string
	Status   int
	Call     outcome.Call
	Failure  outcome.Failure
	Party    outcome.Party
	Attempts int
	// Elsewhere, Unreached and Missing are endpoints that were tried and did not serve it; see
	// [outcome.Outcome].
	Elsewhere, Unreached, Missing []string
	FirstBody, Duration           time.Duration
	Prompt, Completion            int // tokens; 0 if unknown
	// ErrorType and ErrorCode are from the error in the engine's answer.
	ErrorType, ErrorCode string
	// Code and Message are extproc's error, if it ended the request after the decision.
	Code, Message string
}

// OutcomeOf returns what is stored of an outcome.
func OutcomeOf(o *outcome.Outcome) Outcome {
	return Outcome{
		Endpoint: o.Endpoint, Status: o.Status, Call: o.Call, Failure: o.Failure, Party: o.Party(), Attempts: o.Attempts,
		Elsewhere: o.Elsewhere, Unreached: o.Unreached, Missing: o.Missing, FirstBody: o.FirstBody, Duration: o.Duration,
		Prompt: int(o.Prompt.Or(0)), Completion: int(o.Completion.Or(0)), ErrorType: o.ErrorType, ErrorCode: o.ErrorCode,
	}
}

// Append encodes an outcome.
func (o *Outcome) Append(b []byte) []byte {
	for _, text := range [...]string{o.Endpoint, string(o.Failure), string(o.Party), o.ErrorType, o.ErrorCode, o.Code, o.Message} {
		b = appendText(b, text)
	}
	for _, n := range [...]int64{
		int64(o.Status), int64(o.Call), int64(o.Attempts), int64(o.FirstBody), int64(o.Duration), int64(o.Prompt), int64(o.Completion),
	} {
		b = appendNumber(b, n)
	}
	for _, all := range [...][]string{o.Elsewhere, o.Unreached, o.Missing} {
		all = all[:min(len(all), maxTried)]
		b = appendNumber(b, int64(len(all)))
		for _, endpoint := range all {
			b = appendText(b, endpoint)
		}
	}
	return b
}

// maxTried is the maximum number of endpoints in each list of an outcome.
const maxTried = 8

// appendText encodes a text. It cuts what exceeds maxText.
func appendText[T ~string | ~[]byte](b []byte, text T) []byte {
	text = text[:min(len(text), maxText)]
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

func appendNumber(b []byte, n int64) []byte { return binary.AppendVarint(b, n) }

// reader decodes what was encoded above. After an error, which only a wrong encoding causes, it
// returns zero values.
type reader struct{ rest []byte }

func (r *reader) number() int64 {
	n, size := binary.Varint(r.rest)
	if size <= 0 {
		r.rest = nil
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *reader) text() string {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 || n > uint64(len(r.rest)-size) {
		r.rest = nil
		return ""
	}
	text := string(r.rest[size:][:n])
	r.rest = r.rest[size:][n:]
	return text
}

func (r *reader) byte() byte {
	if len(r.rest) == 0 {
		return 0
	}
	b := r.rest[0]
	r.rest = r.rest[1:]
	return b
}

func (r *reader) float() float64 {
	if len(r.rest) < 4 {
		r.rest = nil
		return 0
	}
	f := math.Float32frombits(binary.LittleEndian.Uint32(r.rest))
	r.rest = r.rest[4:]
	return float64(f)
}

// ReadDecision decodes a decision and its candidates: those that the data plane may try, and the
// others.
func ReadDecision(text []byte) (d Decision, picked, others []Candidate) {
	r := reader{text}
	d.ID, d.At = []byte(r.text()), time.Unix(0, r.number())
	for _, to := range [...]*string{&d.Route, &d.Pool, &d.Asked, &d.VModel, &d.Model, &d.Fallback, &d.Code, &d.Message} {
		*to = r.text()
	}
	d.Why, d.Policy = Wait(r.byte()), pick.Rule(r.byte())
	bits := r.byte()
	d.Unpredicted, d.Tokenless, d.Relay, d.Again = bits&unpredicted != 0, bits&tokenless != 0, bits&relay != 0, bits&again != 0
	d.Band = int32(r.number()) //nolint:gosec // an int32 was encoded
	d.Waited, d.Prompt, d.Output = time.Duration(r.number()), int(r.number()), int(r.number())
	d.Status = int(r.number())
	n, m := r.number(), r.number()
	for range n {
		picked = append(picked, r.candidate())
	}
	for range m {
		others = append(others, r.candidate())
	}
	return d, picked, others
}

func (r *reader) candidate() (c Candidate) {
	c.Endpoint, c.Reason, c.State = r.text(), r.text(), pick.State(r.byte())
	c.Requests, c.ForAdapter, c.Adapters = r.number(), r.number(), r.number()
	if r.byte() == 0 {
		return c
	}
	is := &c.Estimate
	is.Adapter = pick.Place(r.byte())
	for _, to := range [...]*float64{
		&is.FrontendOverhead, &is.Queue, &is.Room, &is.Load, &is.Prefill, &is.Delay, &is.Step, &is.Longer, &is.Own, &is.Others,
	} {
		*to = r.float()
	}
	return c
}

// ReadOutcome decodes an outcome.
func ReadOutcome(text []byte) (o Outcome) {
	r := reader{text}
	o.Endpoint, o.Failure, o.Party = r.text(), outcome.Failure(r.text()), outcome.Party(r.text())
	o.ErrorType, o.ErrorCode, o.Code, o.Message = r.text(), r.text(), r.text(), r.text()
	o.Status, o.Call, o.Attempts = int(r.number()), outcome.Call(r.number()), int(r.number()) //nolint:gosec // a Call was encoded
	o.FirstBody, o.Duration = time.Duration(r.number()), time.Duration(r.number())
	o.Prompt, o.Completion = int(r.number()), int(r.number())
	for _, to := range [...]*[]string{&o.Elsewhere, &o.Unreached, &o.Missing} {
		for range r.number() {
			*to = append(*to, r.text())
		}
	}
	return o
}
