package stream

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/objects"
)

// picked is what was decided of a request, and its place in flight.
type picked struct {
	began    time.Time // when its headers came
	sentAt   time.Time // when it was whole
	begunAt  time.Time // when it was sent to its endpoint
	settings settings.Settings
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
	replaced bool   // the client's own Authorization goes no further
	token    string // that goes on in its place, empty for none
	turn     uint64 // of all requests of this process
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

// decision is where the request goes first.
func (p *picked) decision() *pick.Decision { return &p.picks[0] }

// reason is why it goes there.
func (p *picked) reason() string {
	if len(p.picks) == 0 {
		return "inner server"
	}
	return p.picks[0].Reason
}

// choose finds the endpoint of a request: one load of the fleet's view, or two for a VModel, then pure functions of it. It counts nothing.
// Body is nil where it is not known.
func (x *exchange) choose(a ask, body []byte, now time.Time) error {
	s := x.server
	view := s.Fleet.View()
	target, near, err := x.admit(&a, view)
	if err != nil {
		return err
	}
	if x.call != nil && !view.World.Pools[target.Pool].TakesRPC(x.call.method) {
		return errNoMethod
	}
	x.settings = s.Settings.For(view.World.Pools[target.Pool])
	session := x.in.session(x.settings)
	x.found = target
	if name := target.Adapter; name != "" {
		if target.Adapter = s.Fleet.Resolve(view.World, objects.ModelKey{Pool: target.Pool, ID: name}, cmp.Or(session, s.Random())); target.Adapter != name {
			view = s.Fleet.View() // the first may be from before control moved the name, and not know the copies there
		}
	}
	x.target = target
	if x.transcodes(view.World.Pools[target.Pool]) {
		return errTranscode
	}
	x.turn = s.turn.Add(1)
	request := pick.Request{
		Pool: target.Pool.String(), Model: cmp.Or(target.Adapter, a.model), Base: !target.Open && target.Adapter == "",
		Open: target.Open, Only: x.hints.only, Near: near, Session: session,
		Turn: x.turn, Random: s.Random(),
	}
	if s.Conformance && x.in.selection != "" {
		request.Only = pick.ParseSubset([]string{x.in.selection})
	}
	if x.overtakes() {
		return &miss{x.wanted(), pick.ErrNotAddressable}
	}
	most := x.settings.Picks
	if most < 2 { // the pool forbids retries
		if known := (fleet.Maker{Pool: target.Pool, Address: x.search.maker}); unheard(view, known) {
			x.search.most, x.search.everybody = 1, false // it goes to the endpoint that made the response
		} else {
			x.search = search{}
		}
	}
	if x.search.id != "" {
		most = maxSearch + 1
	}
	named := most
	base := view.Snapshot.Pools[request.Pool].BaseModel()
	if request.Tokenless = x.tokenless(); x.runs() {
		request.Demand.Pace = s.pace(view.World, x.habitual(request, base))
	}
	if !request.Tokenless && s.predicts(x.settings.Policy) {
		if x.demand(a, body, base, now, &request); s.ExplainPicks {
			most = max(most, 2)
		}
	}
	room := x.room[:]
	if most > len(room) {
		room = make([]pick.Decision, most)
	}
	x.ranked, err = pick.Pick(x.settings.Policy, view.Snapshot, request, room[:most])
	x.picks = unlimited(x.ranked[:min(len(x.ranked), named)])
	if x.search.id != "" && err == nil {
		x.spread(view, request, x.searches)
		x.limitSearch()
	}
	if x.placed() && isMiss(err) && len(view.Snapshot.Pools[request.Pool].Any) > 0 {
		return &miss{x.wanted(), err}
	}
	if err == nil {
		x.authorize(view.World)
		x.world = view.World
		if x.call != nil && x.call.method != readyMethod { // which no engine gets
			err = x.takes(view)
		}
	}
	return x.unknown(err)
}

// admit finds what a request is for, and the endpoint that made the answer from which it goes on. What was admitted before stays admitted.
func (x *exchange) admit(a *ask, view *endpointstate.View) (target route.Target, near string, err error) {
	if x.errand != nil {
		if x.errand.Most > 0 { // other pools are asked too
			x.search = search{id: a.previous, most: int(x.errand.Most)}
		}
		return x.errand.Models[0].Target, "", nil
	}
	s := x.server
	offer, err := x.offer(view)
	if err != nil {
		return target, "", err
	}
	of := route.Ask{Offer: offer, Model: a.model, Default: x.unrouted(view, offer, a.model), Random: s.Random()}
	of.Given, _ = x.given(view.World)
	x.search, x.searches = search{}, nil
	if a.previous != "" {
		maker, ok := s.Fleet.Maker(a.previous)
		counts := x.counts(offer, of.Given)
		switch {
		case (!ok || unheard(view, maker)) && x.searchable(a, view.World, counts):
			if s.Fleet.Nowhere(a.previous) {
				return target, "", errUnknownAnswer
			}
			x.search = search{id: a.previous, everybody: true, most: maxSearch, maker: maker.Address}
			switch {
			case a.model != "":
			case ok && counts(maker.Pool):
				of.Given, x.search.everybody = maker.Pool, false
			default:
				var pools []objects.Name
				if pools, x.search.everybody = x.searched(view, offer, of.Given); len(pools) == 0 {
					return target, "", pick.ErrNoneReady
				}
				of.Given, x.searches = pools[0], pools[1:]
			}
		case ok && counts(maker.Pool):
			near = maker.Address
			if a.model == "" {
				of.Given = maker.Pool
			}
		case a.model == "" && x.inferenceOnly() && of.Default == (objects.Name{}):
			return target, "", errUnknownAnswer
		}
	}
	if a.model != "" && s.Flow != nil && offer.Route(a.model) == nil {
		of.Registered, _ = s.Fleet.Registered(a.model, x.counts(offer, of.Given))
	}
	target, err = route.Find(view.World, of)
	if err != nil || target.Open {
		if err := x.pathOf(view, target, a.model); err != nil {
			return target, "", err
		}
	}
	if err != nil && x.op == openai.None && x.call == nil && x.rest.Op == kserve.None && a.model != "" {
		// On a path that is none of ours the model is a help and no more.
		of.Model, a.model = "", ""
		target, err = route.Find(view.World, of)
	}
	if err != nil {
		return target, "", x.unknown(err)
	}
	if a.naming != anyName && s.Fleet.IsVModel(view.World, objects.ModelKey{Pool: target.Pool, ID: a.model}) != (a.naming == vmodelName) {
		if a.naming == vmodelName {
			return target, "", errNoVModel
		}
		return target, "", route.ErrUnknownModel
	}
	return target, near, nil
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
func (x *exchange) authorize(w *objects.World) {
	pool := w.Pools[x.target.Pool]
	if x.replaced, x.token = pool.ReplacesAuthorization(), ""; !x.replaced {
		return
	}
	own := slices.DeleteFunc(slices.Clone(x.picks), func(d pick.Decision) bool { return !w.Owns(x.target.Pool.Namespace, d.Endpoint.Address) })
	if len(own) > 0 {
		x.picks, x.token = own, x.server.Tokens.Of(pool.TokenRef())
	}
}

// maxChoices bounds how often a request is decided anew because the copy that it was to go to went away that moment. Each
// time another view is in force, so that even twice is rare.
const maxChoices = 8

// send chooses the endpoint of a request, and counts it there.
func (x *exchange) send(a ask, body []byte, now time.Time) error {
	defer x.dropPrompt()
	for range maxChoices {
		if err := x.choose(a, body, now); err != nil {
			return err
		}
		if x.count(a, now) {
			return nil
		}
	}
	return x.taken()
}

// tokenless says whether the request is for a model that may have no tokens: gRPC calls and requests of V2 are.
func (x *exchange) tokenless() bool { return x.call != nil || x.rest.Op != kserve.None }

// runs says whether it is one that runs its model: by those it is learned how long that takes.
func (x *exchange) runs() bool {
	if x.call != nil {
		return kserve.Runs(x.call.method)
	}
	return x.rest.Op.Runs()
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

// pathOf refuses a name that is a path, unless an endpoint of the open pool lists it: an engine that does not know the name
// might load what is there (see [engine.CheckName]).
func (x *exchange) pathOf(view *endpointstate.View, target route.Target, model string) error {
	if model == "" {
		return nil
	}
	err := openai.CheckName(model)
	if err != nil && target.Open && view.Snapshot.Pools[target.Pool.String()].Lists(model) {
		return nil
	}
	return err
}

// unrouted is the pool of a model that no route admits, zero if there is none. At our own Envoy that is one of the pools that
// no LLMRoute names, if its endpoints list the model; the pool of the command line goes first.
func (x *exchange) unrouted(view *endpointstate.View, offer *objects.Offer, model string) objects.Name {
	if !x.takesOpen() {
		return x.commandLine()
	}
	if model == "" || offer.Route(model) != nil {
		return x.server.Default
	}
	lists := func(name objects.Name) bool { return view.Snapshot.Pools[name.String()].Lists(model) }
	if x.server.Default != (objects.Name{}) && lists(x.server.Default) {
		return x.server.Default
	}
	if at := slices.IndexFunc(view.World.Open(), lists); at >= 0 {
		return view.World.Open()[at]
	}
	return x.server.Default
}

// takesOpen says whether the request may go to any pool that no LLMRoute names.
func (x *exchange) takesOpen() bool { return x.inferenceOnly() && x.listener == "" }

// commandLine is the pool that the command line names, where the request may go there; zero if there is none.
func (x *exchange) commandLine() objects.Name {
	if x.listener != "" || x.pool != (objects.Name{}) {
		return objects.Name{}
	}
	return x.server.Default
}

// unread says whether a pool that the request may go to has lists that were not read yet.
func (x *exchange) unread() bool {
	if !x.takesOpen() {
		return false
	}
	view := x.server.Fleet.View()
	return slices.ContainsFunc(view.World.Open(), func(name objects.Name) bool {
		p := view.Snapshot.Pools[name.String()]
		return p != nil && p.Unread
	})
}

// renames says whether the engine knows the model by another name than the client, who may have named none.
func (x *exchange) renames(a ask) bool {
	return a.model != "" && (a.text.Absent() || x.decision().Model != a.model)
}

// known is the name by which the model is known at the endpoint, which is not always the one to ask for it by.
func (x *exchange) known() string {
	if c := x.decision().Copy; !c.Base && c.Model != "" {
		return c.Model
	}
	return x.decision().Model
}

// count counts the request as in flight where choose sent it, and says whether it may go there still.
func (x *exchange) count(a ask, now time.Time) bool {
	s := x.server
	if x.inFlight = s.Fleet.Begin(*x.decision()); x.inFlight == nil {
		return false
	}
	x.stream, x.address, x.model = a.stream, x.decision().Endpoint.Address, x.known()
	x.id = s.started + "-" + strconv.FormatUint(x.turn, 36)
	x.to = destination(x.picks, x.reached)
	x.addInner(a.model, now)
	x.promptSent()
	if is := &x.decision().Estimate; *is != (pick.Estimate{}) {
		x.expected = x.spent + time.Duration(is.FirstToken()*float64(time.Second))
		if x.adapter = ""; x.decision().Tells() {
			x.adapter, x.loading = wire.NoAdapter, time.Duration((is.Intake+is.Load)*float64(time.Second))
			if !x.decision().Copy.Base {
				x.adapter = is.Adapter.String()
			}
		}
	}
	if x.sentAt, x.begunAt, x.among = now.Add(-x.spent), now, 0; x.runs() {
		x.among = x.decision().Among
	}
	switch {
	case !x.bound():
		s.Fleet.Lease(x.id, x.inFlight, x.settings.Lease)
	case x.sealed != "":
		s.Fleet.Keep(x.id, x.inFlight) // the inner server may release it
	}
	s.Meter.Decided(x.target.Pool.String(), x.decision().Reason, time.Since(now))
	return true
}

// bound says whether the end of the stream is the end of the request. Envoy closes the stream as soon as it has nothing
// more to show: at once where it shows no bodies, or the request's in chunks and none of the answer. What a data plane
// will show that announces no modes is known when it shows it.
func (x *exchange) bound() bool {
	switch {
	case !x.announced:
		return x.answer.Began()
	case x.mode == modeBuffered, x.mode == modePartial:
		return true
	}
	return x.shown != modeNone
}

// common is what goes into the request's headers.
func (x *exchange) common() *extprocv3.CommonResponse {
	mutation := &extprocv3.HeaderMutation{
		SetHeaders:    []*corev3.HeaderValueOption{header(wire.DestinationHeader, x.to)},
		RemoveHeaders: x.in.control,
	}
	mutation.SetHeaders = append(mutation.SetHeaders, x.retries()...)
	if left := x.left(); left > 0 && x.front == Own {
		mutation.SetHeaders = append(mutation.SetHeaders, header(wire.TimeoutHeader, strconv.FormatInt(left.Milliseconds(), 10)))
	}
	if x.call != nil && x.spent > 0 && x.stated() > 0 {
		mutation.SetHeaders = append(mutation.SetHeaders, header("grpc-timeout", timeout(x.stated()-x.spent)))
	}
	if x.tokenless() && x.model != "" {
		for _, h := range kserve.Written(x.model) {
			mutation.SetHeaders = append(mutation.SetHeaders, header(h.Name, h.Value))
		}
	}
	if x.sealed != "" {
		mutation.SetHeaders = append(mutation.SetHeaders, header(wire.ErrandHeader, x.sealed))
	}
	switch {
	case !x.replaced:
	case x.token == "":
		mutation.RemoveHeaders = append(slices.Clip(mutation.RemoveHeaders), wire.AuthorizationHeader)
	default:
		mutation.SetHeaders = append(mutation.SetHeaders, header(wire.AuthorizationHeader, "Bearer "+x.token))
	}
	if x.listener != "" || x.errand != nil && x.pool != (objects.Name{}) {
		cluster := wire.PoolCluster
		if x.call != nil {
			cluster = wire.PoolCallsCluster
		}
		mutation.SetHeaders = append(mutation.SetHeaders, header(wire.PoolHeader, cluster(x.target.Pool.Namespace, x.target.Pool.Name)))
	}
	// A route that names the pool by itself is chosen already, maybe by weight.
	return &extprocv3.CommonResponse{HeaderMutation: mutation, ClearRouteCache: x.pool == (objects.Name{}) || x.errand != nil}
}

// resize makes the content length right for a body of another length. Where bodies go in chunks, or only their beginning
// is known, the length goes.
func (x *exchange) resize(common *extprocv3.CommonResponse, length int) {
	switch {
	case x.in.length == "" || x.mode == modePartial: // Envoy takes it away itself
	case x.mode == modeDuplex:
		common.HeaderMutation.RemoveHeaders = append(slices.Clip(common.HeaderMutation.RemoveHeaders), "content-length")
	default:
		common.HeaderMutation.SetHeaders = append(common.HeaderMutation.SetHeaders, header("content-length", strconv.Itoa(length)))
	}
}

// destination is the endpoints in the words of the endpoint-picker protocol, in order. The body goes to all of them as it
// goes to the first: those whose engine knows the model by another name are left out.
func destination(picks []pick.Decision, reached func(endpoint string) string) string {
	if len(picks) == 1 {
		return reached(picks[0].Endpoint.Address)
	}
	list := make([]string, 0, 8)
	for i := range picks {
		if picks[i].Model == picks[0].Model {
			list = append(list, reached(picks[i].Endpoint.Address))
		}
	}
	return strings.Join(list, ",")
}

// reached is where an endpoint takes the request. Other gateways know its address alone.
func (x *exchange) reached(endpoint string) string {
	switch {
	case x.front != Own:
		return endpoint
	case x.call != nil:
		return x.world.Reached(endpoint, objects.GRPC)
	}
	return x.world.Reached(endpoint, objects.HTTP)
}

// withMetadata adds what the cluster reads to find the endpoint, and what comes back with the access log.
func (x *exchange) withMetadata(m *extprocv3.ProcessingResponse) *extprocv3.ProcessingResponse {
	pick := map[string]*structpb.Value{
		wire.PickPool:   structpb.NewStringValue(x.target.Pool.String()),
		wire.PickModel:  structpb.NewStringValue(x.model),
		wire.PickReason: structpb.NewStringValue(x.reason()),
		wire.PickStream: structpb.NewBoolValue(x.stream),
		wire.PickID:     structpb.NewStringValue(x.id),
	}
	if x.target.Route != (objects.Name{}) {
		pick[wire.PickRoute] = structpb.NewStringValue(x.target.Route.String())
	}
	if x.found.Adapter != "" && x.found.Adapter != x.target.Adapter {
		pick[wire.PickVModel] = structpb.NewStringValue(x.found.Adapter)
	}
	if x.search.id != "" {
		pick[wire.PickStored] = structpb.NewStringValue(x.search.id)
		pick[wire.PickEverybody] = structpb.NewBoolValue(x.search.everybody)
	}
	if x.errand != nil {
		pick[wire.PickInner] = structpb.NewBoolValue(true)
		if x.errand.Last {
			pick[wire.PickAgain] = structpb.NewBoolValue(true)
		}
	}
	if len(x.picks) > 0 && x.decision().Copy.Unlisted {
		pick[wire.PickUnlisted] = structpb.NewBoolValue(x.begunAt.UnixNano() >= x.decision().Copy.Own)
	}
	if x.call != nil && x.call.messages != nil {
		pick[wire.PickMessages] = structpb.NewBoolValue(true)
	}
	if x.settings.FinalUnavailable {
		pick[wire.PickUnavailable] = structpb.NewBoolValue(false)
	}
	x.expect(pick)
	if x.spent > 0 {
		pick[wire.PickHold] = structpb.NewNumberValue(float64(x.spent.Microseconds()))
	}
	m.DynamicMetadata = object(map[string]*structpb.Value{
		wire.DestinationNamespace: structpb.NewStructValue(object(map[string]*structpb.Value{
			wire.DestinationHeader: structpb.NewStringValue(x.to),
		})),
		wire.PickNamespace: structpb.NewStructValue(object(pick)),
	})
	x.told = true
	x.forget()
	return m
}

// takeBack counts a request as gone that was counted, and that the data plane was not told of: its record will not say which it was.
func (x *exchange) takeBack() {
	if x.inFlight != nil && !x.told {
		x.inFlight.End()
		x.server.Fleet.Release(x.id)
		x.inFlight = nil
	}
}

// dropPicks lets go of what was decided, and with it of a snapshot of the fleet.
func (p *picked) dropPicks() {
	p.ranked, p.picks, p.room, p.world = nil, nil, [len(p.room)]pick.Decision{}, nil
}

// forget lets go of what was needed to decide: an answer may take minutes, and must not keep a snapshot of the fleet alive
// for as long.
func (x *exchange) forget() {
	x.dropPicks()
	x.in.all, x.chunks, x.token, x.sealed = nil, nil, "", ""
}

func object(fields map[string]*structpb.Value) *structpb.Struct {
	return &structpb.Struct{Fields: fields}
}
