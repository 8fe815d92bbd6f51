package stream

import (
	"cmp"
	"slices"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/decisions/ring"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// dispatcher decides one request. It admits the request (admit.go), queues it if necessary
// (queue.go), chooses its endpoints, counts it as in flight at the first endpoint, and finishes it
// (finish.go). It depends neither on the order of messages nor on the API. The exchange and the
// protocol call the dispatcher, and the dispatcher calls neither.
type dispatcher struct {
	server *Server
	scope  *scope
	in     *request
	traits traits
	picked
	queued
	fallback fallback
	answered
	limited limited
}

// picked is the decision about a request, and its entry in the counts of requests in flight.
type picked struct {
	began       time.Time // when the request's headers arrived
	sentAt      time.Time // when all of the request had arrived
	begunAt     time.Time // when the request was sent to its endpoint
	settings    settings.Settings
	session     uint64          // hash of the session key; 0 if there is none
	found       route.Target    // target that the client's name refers to; may be a VModel
	target      route.Target    // found, with a VModel resolved to its model
	pool, route string          // names of the target's pool and route; the latter may be empty
	ranked      []pick.Decision // candidates in the policy's order; nil after they are reported
	picks       []pick.Decision // the endpoints that the data plane may try, in order
	world       *objects.World  // the objects that the decision used
	room        [3]pick.Decision
	to          string // value of the destination header, made from picks
	sealed      string // the encrypted relay token; may be empty
	address     string // address of the first pick
	model       string // engine's name of the model
	stream      bool
	noUsage     bool        // see [wire.PickNoUsage]
	inject      kserve.Path // where to write the model into the call's messages; nil: nowhere
	replaced    bool        // the client's Authorization header must be removed
	token       string      // token that replaces the client's; may be empty
	turn        uint64      // sequence number of the request in this process
	id          string
	explanation *explanation
	number      uint64           // number of the recorded decision; 0 if none is recorded
	demanded    pick.Demand      // without Cached
	unpredicted bool             // policy latency has no trusted predictions, so that policy proposal decided
	explained   []ring.Candidate // the policy's first choices; empty without --explain-picks
	prompt      *prompt          // nil if the policy reads no prompts
	kept        *hashed          // prompt of a request that waits; may be nil
	bytes       int              // size of the prompt in bytes
	limit       int              // most output tokens that the request allows; 0 if it states no limit
	expected    time.Duration    // predicted time from the complete request to the first token
	adapter     string           // where the adapter was, as predicted; empty if the first token does not show load times
	loading     time.Duration    // part of expected: adapter load and frontend overhead
	among       int64            // see [pick.Decision.Among]; 0 if the request runs no inference
	inFlight    *fleet.InFlight
	announced   bool // the data plane has received the decision
	search      search
	searches    []objects.Name // other pools that may have the stored response
}

// aim sets the target of the request.
func (d *dispatcher) aim(target route.Target) {
	d.target, d.pool, d.route = target, target.Pool.String(), ""
	if target.Route != (objects.Name{}) {
		d.route = target.Route.String()
	}
}

// first returns the decision for the endpoint that the data plane tries first.
func (d *dispatcher) first() *pick.Decision { return &d.picks[0] }

// reason returns why the request goes to its first endpoint.
func (d *dispatcher) reason() string {
	if len(d.picks) == 0 {
		return "relay"
	}
	return d.picks[0].Reason
}

// choose finds the endpoints of a request, but does not count it as in flight. Body is nil if it is
// unknown.
func (d *dispatcher) choose(a ask, body []byte, now time.Time) error {
	view, near, err := d.resolve(&a)
	if err != nil {
		return err
	}
	d.near = near
	if err := d.limited.check(d, &a, body, view); err != nil {
		return err
	}
	identify(d, body)
	if err := d.enter(&a); err != nil {
		if d.server.explains {
			_ = d.pick(&a, body, view, near, now) // the candidates if the request did not wait for others
		}
		return err
	}
	return d.pick(&a, body, view, near, now)
}

// resolve admits a request or aims it at its fallback, and resolves a VModel to its model. The view
// that it returns is at least as new as the VModel's target. The result near is that of admit.
func (d *dispatcher) resolve(a *ask) (view *endpointstate.View, near string, err error) {
	s := d.server
	view = s.Fleet.View()
	target, near, err := d.fallback.targetOf(a, view)
	if err != nil {
		return nil, "", err
	}
	pool := view.World.Pools[target.Pool]
	if d.traits.call && !pool.TakesRPC(d.traits.method) {
		return nil, "", errNoMethod
	}
	d.settings = s.Settings.For(pool)
	d.session = d.in.session(d.settings)
	d.found = target
	if name := target.Adapter; name != "" {
		key := objects.ModelKey{Pool: target.Pool, ID: name}
		if target.Adapter = s.Fleet.Resolve(view.World, key, cmp.Or(d.session, s.Random())); target.Adapter != name {
			view = s.Fleet.View() // the first view may be older than the VModel's new target
		}
	}
	d.aim(target)
	if d.converts(view.World.Pools[target.Pool]) {
		return nil, "", errTranscode
	}
	return view, near, nil
}

// pick lets the policy choose among the endpoints of a view.
func (d *dispatcher) pick(a *ask, body []byte, view *endpointstate.View, near string, now time.Time) (err error) {
	s, target := d.server, &d.target
	d.turn = s.turn.Add(1)
	request := pick.Request{
		Pool: d.pool, Model: cmp.Or(target.Adapter, a.model), Base: !target.Open && target.Adapter == "",
		Open: target.Open, Only: d.scope.hints.only, Near: near, Session: d.session,
		Turn: d.turn, Random: s.Random(), FailClose: target.Sharing.Or().FailClose,
	}
	if s.Conformance && d.in.selection != "" {
		request.Only = pick.ParseSubset([]string{d.in.selection})
	}
	most := d.settings.EndpointsPerRequest
	if most < 2 { // the pool forbids retries
		if known := (fleet.Maker{Pool: target.Pool, Address: d.search.maker}); unscraped(view, known) {
			d.search.most, d.search.everybody = 1, false // ask only the endpoint that made the response
		} else {
			d.search = search{}
		}
	}
	if d.search.id != "" {
		most = maxSearch + 1
	}
	named := most
	base := view.Snapshot.Pools[request.Pool].BaseModel()
	request.Gate = gateOf(d, a, view.Snapshot)
	if request.Tokenless = d.traits.tokenless; d.traits.runs {
		request.Demand.ServiceTime = s.serviceTime(view.World, d.statsKey(request, base))
	}
	if !request.Tokenless && s.predicts(d.settings.Policy) {
		d.demand(&a.text, body, base, now, &request)
	}
	pool := view.Snapshot.Pools[request.Pool]
	d.unpredicted = d.settings.Policy.Rule == pick.Latency && !request.Tokenless && pool != nil && !pool.Predictable
	if s.ExplainPicks || s.EmitScores || pool != nil && len(pool.Endpoints) <= maxRunnerUp {
		most = max(most, 2)
	}
	d.demanded = request.Demand
	d.demanded.Cached = nil // belongs to the prompt
	if s.explains && pool != nil {
		most = max(most, len(pool.Endpoints))
	}
	room := d.room[:]
	if most > len(room) {
		room = make([]pick.Decision, most)
	}
	d.ranked, err = pick.Pick(d.settings.Policy, view.Snapshot, request, room[:most])
	if s.explains {
		d.explanation.considered(a.model, d.settings.Policy, view.Snapshot, request, d.ranked)
	}
	if d.explained = nil; s.ExplainPicks && err == nil { // before the request is counted
		for i := range d.ranked[:min(len(d.ranked), 2)] {
			d.explained = append(d.explained, ring.CandidateOf(&d.ranked[i]))
		}
	}
	d.picks = unlimited(d.ranked[:min(len(d.ranked), named)])
	if d.search.id != "" && err == nil {
		d.spread(view, request, d.searches)
		d.limitSearch()
	}
	if err != nil {
		err = missed(d, a, err, view.Snapshot, &request, now)
	} else {
		d.authorize(view.World)
		d.world = view.World
		if d.traits.call && d.traits.method != readyMethod { // extproc answers readyMethod itself
			err = d.takes(view)
		}
	}
	return d.scope.unknown(err)
}

// maxRunnerUp is the maximum number of a pool's endpoints among which the policy's second choice is
// found for the record of decisions, although the data plane gets only one. In larger pools it
// would cost more than a hundredth of a request.
const maxRunnerUp = 256

// unlimited removes the first retry at a copy with a concurrency limit and all picks after it.
// extproc counts a retry only when it arrives, so a retry could exceed the limit.
func unlimited(picks []pick.Decision) []pick.Decision {
	for n := 1; n < len(picks); n++ {
		if picks[n].Copy.Limited {
			return picks[:n]
		}
	}
	return picks
}

// authorize finds the token that replaces the client's Authorization header, if the pool has such a
// token. Endpoints that the pool's namespace does not own must not get the token, so they are
// dropped from the picks. If that would drop all picks, they stay, and the request has no token.
func (d *dispatcher) authorize(w *objects.World) {
	pool := w.Pools[d.target.Pool]
	if d.replaced, d.token = pool.ReplacesAuthorization(), ""; !d.replaced {
		return
	}
	own := slices.DeleteFunc(slices.Clone(d.picks), func(p pick.Decision) bool {
		return !w.Owns(d.target.Pool.Namespace, p.Endpoint.Address)
	})
	if len(own) > 0 {
		d.picks, d.token = own, d.server.Tokens.Of(pool.TokenRef())
	}
}

// maxChoices limits how often a request is decided again because the chosen copy was removed in the
// meantime. Each attempt uses a newer view, so even two attempts are rare.
const maxChoices = 8

// send chooses the endpoints of a request, and counts it as in flight at the first endpoint.
func (d *dispatcher) send(a ask, body []byte, now time.Time) (err error) {
	defer func() {
		d.kept = keptPrompt(d, err)
		d.dropPrompt()
	}()
	for range maxChoices {
		if err := d.choose(a, body, now); err != nil {
			return err
		}
		if d.count(a, now) {
			return nil
		}
	}
	return d.taken(a.model)
}

// serviceTime returns the service time of a model without tokens, in nanoseconds. It is the learned
// time if there is one, otherwise that of the model's object, or 0 if both are unknown.
func (s *Server) serviceTime(w *objects.World, k objects.ModelKey) int64 {
	if learned := s.memory.ServiceTime(k); learned > 0 {
		return learned
	}
	if e, ok := w.Entry(k); ok {
		return int64(e.ServiceTime)
	}
	return 0
}

// renames reports whether the model's name in the request must be changed to the engine's name, or
// added because the client named no model.
func (d *dispatcher) renames(a ask) bool {
	return a.model != "" && (a.text.Absent() || d.first().Model != a.model)
}

// known returns the name under which the endpoint reports the model. The engine may accept other
// names in requests.
func (d *dispatcher) known() string {
	if c := d.first().Copy; !c.Base && c.Model != "" {
		return c.Model
	}
	return d.first().Model
}

// count counts the request as in flight at its first pick. It returns false if that copy does not
// accept the request any more.
func (d *dispatcher) count(a ask, now time.Time) bool {
	s := d.server
	d.stream, d.address, d.model = a.stream, d.first().Endpoint.Address, d.known()
	d.noUsage = d.scope.front == Own && !a.text.StatesUsage(d.in.path)
	d.to = destination(d.picks, d.reached)
	if s.explains {
		d.explain(a.model, now)
		return true
	}
	var room [recordBytes]byte
	record := d.record(room[:0], a.model, now) // before the request is among those that it shows
	if d.inFlight = s.Fleet.Begin(*d.first()); d.inFlight == nil {
		return false
	}
	if d.hasTurn {
		d.work = serviceOf(d)
	}
	d.number = s.Decisions.Add(d.in.id, record)
	d.id = s.Decisions.ID(d.number)
	noteSent(d)
	d.limited.sent(d)
	d.addRelay(a.model, now)
	d.promptSent()
	if is := &d.first().Estimate; *is != (pick.Estimate{}) {
		d.expected = d.spent + time.Duration(is.FirstToken()*float64(time.Second))
		if d.adapter = ""; d.first().ShowsOverhead() {
			d.adapter, d.loading = wire.NoAdapter, time.Duration((is.FrontendOverhead+is.Load)*float64(time.Second))
			if !d.first().Copy.Base {
				d.adapter = is.Adapter.String()
			}
		}
	}
	if d.sentAt, d.begunAt, d.among = now.Add(-d.spent), now, 0; d.traits.runs {
		d.among = d.first().Among
	}
	switch {
	case !d.scope.bound(d.answer.Began()):
		s.Fleet.Lease(d.id, d.inFlight, d.settings.InFlightTimeout)
	case d.sealed != "":
		s.Fleet.Keep(d.id, d.inFlight) // so that the relay can release it
	}
	s.Meter.Decided(d.pool, d.first().Reason, time.Since(now))
	return true
}

// takeBack ends the count of a request whose decision the data plane never received. No access-log
// record would end it.
func (d *dispatcher) takeBack() {
	if d.inFlight != nil && !d.announced {
		d.inFlight.End()
		d.server.Fleet.Release(d.id)
		d.inFlight = nil
	}
}

// dropPicks releases the decision and the snapshot of the fleet that it refers to.
func (d *dispatcher) dropPicks() {
	d.ranked, d.picks, d.room, d.world = nil, nil, [len(d.room)]pick.Decision{}, nil
}

// takes finds where the engine expects the model in the call's messages, and skips picks whose
// engine does not accept the method. The data plane sends the same messages to every pick. So takes
// keeps only the first usable pick and the picks after it up to the first pick whose engine expects
// the model elsewhere.
func (d *dispatcher) takes(view *endpointstate.View) error {
	first := 0
	for ; first < len(d.picks); first++ {
		path, ok := d.injection(view, &d.picks[first])
		if ok {
			d.inject = path
			break
		}
	}
	if first == len(d.picks) {
		return errNoMethod
	}
	end := first + 1
	for end < len(d.picks) {
		if other, ok := d.injection(view, &d.picks[end]); !ok || !slices.Equal(other, d.inject) {
			break
		}
		end++
	}
	d.picks = d.picks[first:end]
	return nil
}

// injection returns where a pick's engine expects the model in the call's messages, and whether the
// engine accepts the method. Model runtimes report both; other engines follow V2. An engine accepts
// no calls if it is not known to speak gRPC, unless a route sends them there.
func (d *dispatcher) injection(view *endpointstate.View, at *pick.Decision) (kserve.Path, bool) {
	if d.scope.inferenceOnly() && !view.World.SpeaksGRPC(at.Endpoint.Address) {
		return nil, false
	}
	if methods, said := view.Methods[at.Endpoint.Address]; said {
		path, takes := methods.Takes(d.traits.method)
		return path, takes
	}
	if view.World.KindAt(at.Endpoint.Address) == engine.ModelRuntime {
		return nil, true
	}
	return kserve.InV2(d.traits.method), true
}
