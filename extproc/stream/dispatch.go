package stream

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// dispatcher decides one request: it admits it (admit.go), lets it wait for its turn (queue.go), chooses its endpoints, counts it at the first,
// and finishes it (finish.go). It does not know in which order messages come, nor how an API looks: the exchange and the protocol of the request
// call it, and it calls neither.
type dispatcher struct {
	server *Server
	scope  *scope
	in     *request
	traits traits
	picked
	queued
	answered
}

// picked is what was decided of a request, and its place in flight.
type picked struct {
	began    time.Time // when its headers came
	sentAt   time.Time // when it was whole
	begunAt  time.Time // when it was sent to its endpoint
	settings settings.Settings
	session  uint64          // see [request.session]
	found    route.Target    // by the name that the client used
	target   route.Target    // which is another model where that is a VModel's
	ranked   []pick.Decision // what the policy thought of endpoints, in order; nil once that is told
	picks    []pick.Decision // those of them that are named: the first is where it goes
	world    *objects.World  // that they were decided by
	room     [3]pick.Decision
	to       string // the destination: all of them, as they are told
	sealed   string // the errand that goes with it, empty for none
	address  string // of the first
	model    string // as the engine knows it
	stream   bool
	inject   kserve.Path // where the engine takes the model in each message of a call; nil if in none
	replaced bool        // the client's own Authorization goes no further
	token    string      // that goes on in its place, empty for none
	turn     uint64      // of all requests of this process
	id       string
	prompt   *prompt       // nil where nobody asks for it
	bytes    int           // of the prompt
	expected time.Duration // when the first token is, from the request's last byte
	adapter  string        // where it was, empty where the first token tells nothing of loads and the intake
	loading  time.Duration // what of expected these take
	among    int64         // see [pick.Decision.Among]; 0 of what runs no model
	inFlight *fleet.InFlight
	told     bool // the data plane was, of what was decided
	search   search
	searches []objects.Name // the other pools whose endpoints are asked
}

// first is the decision for the endpoint to which the request goes first.
func (d *dispatcher) first() *pick.Decision { return &d.picks[0] }

// reason is why it goes there.
func (d *dispatcher) reason() string {
	if len(d.picks) == 0 {
		return "relay"
	}
	return d.picks[0].Reason
}

// choose finds the endpoints of a request, and counts nothing. Body is nil where it is not known.
func (d *dispatcher) choose(a ask, body []byte, now time.Time) error {
	view, near, err := d.resolve(&a)
	if err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	return d.pick(&a, body, view, near, now)
}

// resolve admits a request, and finds the model that a VModel stands for. It loads the fleet's view once, or twice for a VModel.
func (d *dispatcher) resolve(a *ask) (view *endpointstate.View, near string, err error) {
	s := d.server
	view = s.Fleet.View()
	target, near, err := d.admit(a, view)
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
			view = s.Fleet.View() // the first may be older than the VModel's new target, and not have its copies
		}
	}
	d.target = target
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
		Pool: target.Pool.String(), Model: cmp.Or(target.Adapter, a.model), Base: !target.Open && target.Adapter == "",
		Open: target.Open, Only: d.scope.hints.only, Near: near, Session: d.session,
		Turn: d.turn, Random: s.Random(),
	}
	if s.Conformance && d.in.selection != "" {
		request.Only = pick.ParseSubset([]string{d.in.selection})
	}
	most := d.settings.Picks
	if most < 2 { // the pool forbids retries
		if known := (fleet.Maker{Pool: target.Pool, Address: d.search.maker}); unheard(view, known) {
			d.search.most, d.search.everybody = 1, false // it goes to the endpoint that made the response
		} else {
			d.search = search{}
		}
	}
	if d.search.id != "" {
		most = maxSearch + 1
	}
	named := most
	base := view.Snapshot.Pools[request.Pool].BaseModel()
	if request.Tokenless = d.traits.tokenless; d.traits.runs {
		request.Demand.Pace = s.pace(view.World, d.habitual(request, base))
	}
	if !request.Tokenless && s.predicts(d.settings.Policy) {
		if d.demand(&a.text, body, base, now, &request); s.ExplainPicks {
			most = max(most, 2)
		}
	}
	room := d.room[:]
	if most > len(room) {
		room = make([]pick.Decision, most)
	}
	d.ranked, err = pick.Pick(d.settings.Policy, view.Snapshot, request, room[:most])
	d.picks = unlimited(d.ranked[:min(len(d.ranked), named)])
	if d.search.id != "" && err == nil {
		d.spread(view, request, d.searches)
		d.limitSearch()
	}
	if d.placed() && isMiss(err) && len(view.Snapshot.Pools[request.Pool].Any) > 0 {
		return &miss{d.wanted(), err}
	}
	if err == nil {
		d.authorize(view.World)
		d.world = view.World
		if d.traits.call && d.traits.method != readyMethod { // which no engine gets
			err = d.takes(view)
		}
	}
	return d.scope.unknown(err)
}

// unlimited leaves out the picks from the first on that is for a retry and has a limit: nobody counts the request there before it comes.
func unlimited(picks []pick.Decision) []pick.Decision {
	for n := 1; n < len(picks); n++ {
		if picks[n].Copy.Limited {
			return picks[:n]
		}
	}
	return picks
}

// authorize finds the token that a request carries in the place of what its client sent, where its pool says so. No token goes to an
// address that belongs to another namespace: such picks are left out, and where there are no others the request carries none.
func (d *dispatcher) authorize(w *objects.World) {
	pool := w.Pools[d.target.Pool]
	if d.replaced, d.token = pool.ReplacesAuthorization(), ""; !d.replaced {
		return
	}
	own := slices.DeleteFunc(slices.Clone(d.picks), func(p pick.Decision) bool { return !w.Owns(d.target.Pool.Namespace, p.Endpoint.Address) })
	if len(own) > 0 {
		d.picks, d.token = own, d.server.Tokens.Of(pool.TokenRef())
	}
}

// maxChoices bounds how often a request is decided anew because the copy that it was to go to went away that moment. Each
// time another view is in force, so that even twice is rare.
const maxChoices = 8

// send chooses the endpoint of a request, and counts it there.
func (d *dispatcher) send(a ask, body []byte, now time.Time) error {
	defer d.dropPrompt()
	for range maxChoices {
		if err := d.choose(a, body, now); err != nil {
			return err
		}
		if d.count(a, now) {
			return nil
		}
	}
	return d.taken()
}

// pace is how long requests without tokens for a model take, in nanoseconds: what was learned of it, or else what its Model says; 0 for nothing.
func (s *Server) pace(w *objects.World, k objects.ModelKey) int64 {
	if learned := s.Fleet.Pace(k); learned > 0 {
		return learned
	}
	if e, ok := w.Entry(k); ok {
		return int64(e.Pace)
	}
	return 0
}

// renames says whether the engine knows the model by another name than the client, who may have named none.
func (d *dispatcher) renames(a ask) bool {
	return a.model != "" && (a.text.Absent() || d.first().Model != a.model)
}

// known is the name by which the model is known at the endpoint, which is not always the one to ask for it by.
func (d *dispatcher) known() string {
	if c := d.first().Copy; !c.Base && c.Model != "" {
		return c.Model
	}
	return d.first().Model
}

// count counts the request as in flight where choose sent it, and says whether it may go there still.
func (d *dispatcher) count(a ask, now time.Time) bool {
	s := d.server
	if d.inFlight = s.Fleet.Begin(*d.first()); d.inFlight == nil {
		return false
	}
	d.stream, d.address, d.model = a.stream, d.first().Endpoint.Address, d.known()
	d.id = s.started + "-" + strconv.FormatUint(d.turn, 36)
	d.to = destination(d.picks, d.reached)
	d.addRelay(a.model, now)
	d.promptSent()
	if is := &d.first().Estimate; *is != (pick.Estimate{}) {
		d.expected = d.spent + time.Duration(is.FirstToken()*float64(time.Second))
		if d.adapter = ""; d.first().Tells() {
			d.adapter, d.loading = wire.NoAdapter, time.Duration((is.Intake+is.Load)*float64(time.Second))
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
		s.Fleet.Lease(d.id, d.inFlight, d.settings.Lease)
	case d.sealed != "":
		s.Fleet.Keep(d.id, d.inFlight) // the inner server may release it
	}
	s.Meter.Decided(d.target.Pool.String(), d.first().Reason, time.Since(now))
	return true
}

// takeBack counts a request as gone that was counted, and that the data plane was not told of: its record will not say which it was.
func (d *dispatcher) takeBack() {
	if d.inFlight != nil && !d.told {
		d.inFlight.End()
		d.server.Fleet.Release(d.id)
		d.inFlight = nil
	}
}

// dropPicks lets go of what was decided, and with it of a snapshot of the fleet.
func (d *dispatcher) dropPicks() {
	d.ranked, d.picks, d.room, d.world = nil, nil, [len(d.room)]pick.Decision{}, nil
}

// takes finds where engines take the model in the call's messages, and leaves picks out: those before the first whose engine takes the method at
// all, and those whose engines take the model elsewhere than that one, for a message goes to all as it goes to the first. An engine that says
// which methods it has takes no others.
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

// injection is where the engine of a pick wants the model in the messages of the call's method, and whether it takes the method: as a model
// runtime says; other engines want it where V2 has it. One that is not known to speak gRPC takes none, unless a route says that its pool does.
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
