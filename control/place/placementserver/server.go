// Package placementserver serves the placement protocol to extprocs: it sends each extproc the
// state of copies, and receives their requests for models. It keeps everything that placement has
// published, and for each extproc the set of entries still to send, so a slow or reconnecting
// extproc needs no special case.
//
// It also finds out when a draining copy is drained: when every extproc has reported that it sends
// no more requests to the copy and has none in flight there.
package placementserver

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/lending"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/placementproto"
)

const (
	// othersInterval is how often each extproc gets the numbers of requests that the other extprocs
	// have in flight.
	othersInterval = time.Second
	// maxSent limits the entries of one Update: the first state of 20,000 models takes several.
	maxSent = 2000
)

// Placer receives what extprocs report. Package place implements it.
type Placer interface {
	Wanted(who string, key decide.Key, w decide.Want)
	Unwanted(who string)
	Leaving(who string, all map[string]decide.Leaving)
	Used(all map[decide.Key]decide.Use)
	InFlight(all map[decide.CopyKey]int)
	Missing(key decide.CopyKey)
	Drained(key decide.CopyKey)
	Observed(who string, all map[string]conditions.Endpoint, is *conditions.Extproc)
}

// Server serves the placement stream with what placement has published. Make one with [New]. It is
// safe for concurrent use.
type Server struct {
	placement.UnimplementedPlacementServer
	log    *slog.Logger
	placer Placer
	closed chan struct{}
	ledger *backlogs
	turns  *waiting
	limits *lender

	mu         sync.Mutex // guards the fields below
	ready      bool
	endpoints  []string
	copies     map[decide.CopyKey]published // state of each copy that is not GONE
	failures   map[decide.Key]decide.Reason // why a model cannot be loaded; only non-empty reasons
	registered map[decide.Key]bool
	vmodels    map[decide.Key]decide.Switch // active model and canary of each VModel; no zero values
	leaving    map[string]decide.Leaving    // endpoints that are about to end; no zero values
	methods    map[string]engine.Methods    // non-empty sets of gRPC methods, by endpoint
	peers      map[*peer]bool
	joined     int // number of streams opened so far
	drains     map[decide.CopyKey]*drain
	absent     map[string]*time.Timer // disconnected processes that may still send requests, by name
	// inherited are the copies that extprocs of an earlier control process may know: copies that
	// this process found loaded, and copies that the earlier process began to load. It is cleared
	// when these extprocs have had time to reconnect.
	inherited map[decide.CopyKey]bool
	sharing   int // number of processes among which an earlier control divided limits, as extprocs report it
	lessons   profiles
	responses *responses
	known     chan struct{} // closed and replaced when an extproc acknowledges a registration
}

// published is the state of a copy as published to extprocs.
type published struct {
	state placement.Copy_State
	limit int
}

// peer is one stream of an extproc.
type peer struct {
	process string
	name    string        // distinguishes the streams of one process
	news    chan struct{} // capacity 1: full if there may be an Update to send; never closed
	page    *sentBacklogs
	waiting *sentWaiting
	member  *lending.Member // nil until it has reported its use of limits; guarded by Server.limits

	reporting sync.Mutex // held while a Report is recorded, so that none is recorded after the end of the stream; locked before Server.mu
	ended     bool

	// Server.mu guards the fields below.
	version      uint64 // version of the last Update
	applied      uint64
	sentAll      bool // the complete state was sent
	endpoints    bool // endpoints must be sent
	portion      portion
	apportioned  bool // portion must be sent
	copies       map[decide.CopyKey]bool
	failures     map[decide.Key]bool
	registered   map[decide.Key]bool
	vmodels      map[decide.Key]bool
	announced    map[decide.Key]uint64 // registered models, with the version that sent each, until it is acknowledged
	late         bool                  // the extproc exceeded announceLimit; registrations ignore it until it acknowledges
	moving       map[decide.Key]uint64 // VModels, with the version that sent each, until it is acknowledged
	leaving      map[string]bool
	methods      map[string]bool
	parting      map[string]uint64 // leaving endpoints, with the version that sent each, until it is acknowledged
	inFlight     map[decide.CopyKey]int
	others       map[decide.CopyKey]int // requests in flight of other extprocs, as sent
	moved        map[decide.CopyKey]int // requests in flight of other extprocs, still to be sent
	lessons      map[profileKey]bool    // learned profiles that may have to be sent
	sentProfiles map[profileKey]bool    // learned profiles that were sent
	ownEvidence  map[profileKey]float64 // evidence of the profiles that this extproc reported
	responses    map[string]bool        // stored responses whose endpoints must be sent
	question     uint64                 // number of the last question
	answered     uint64                 // number of the last answered question
	queries      queries
}

// New returns an empty Server. Call SetPlacer before it serves.
func New(log *slog.Logger) *Server {
	s := &Server{
		log: log, closed: make(chan struct{}), ledger: newBacklogs(), turns: newWaiting(), limits: newLender(),
		copies: make(map[decide.CopyKey]published), failures: make(map[decide.Key]decide.Reason), registered: make(map[decide.Key]bool),
		vmodels: make(map[decide.Key]decide.Switch), leaving: make(map[string]decide.Leaving), methods: make(map[string]engine.Methods),
		peers: make(map[*peer]bool), drains: make(map[decide.CopyKey]*drain), absent: make(map[string]*time.Timer),
		inherited: make(map[decide.CopyKey]bool),
		lessons:   make(profiles), responses: newResponses(), known: make(chan struct{}),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave(startName)
	return s
}

// SetPlacer sets the Placer, which receives what extprocs report. Call it once, before the Server
// serves.
func (s *Server) SetPlacer(p Placer) { s.placer = p }

// Close ends all streams. Extprocs continue with the state that they have.
func (s *Server) Close() { close(s.closed) }

// Peers returns the number of connected extprocs.
func (s *Server) Peers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.peers)
}

// Publish publishes changes of placement.
func (s *Server) Publish(c decide.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, is := range c.Copies {
		s.setCopy(key, is)
	}
	for key, why := range c.Failures {
		if keep(s.failures, key, why) {
			for p := range s.peers {
				p.failures[key] = true
			}
		}
	}
	for key, there := range c.Registered {
		s.registered[key] = true
		if !there {
			delete(s.registered, key)
		}
		for p := range s.peers {
			p.registered[key] = true
		}
	}
	for key, to := range c.VModels {
		if keep(s.vmodels, key, to) {
			for p := range s.peers {
				p.vmodels[key] = true
			}
		}
	}
	for address, why := range c.Leaving {
		if s.leaving[address] = why; !why.Is() {
			delete(s.leaving, address)
		}
		for p := range s.peers {
			p.leaving[address] = true
		}
	}
	if c.Endpoints != nil {
		s.endpoints = c.Endpoints
		for p := range s.peers {
			p.endpoints = true
		}
	}
	s.wake()
}

// SetMethods publishes the gRPC methods that the engine of an endpoint serves.
func (s *Server) SetMethods(endpoint string, methods engine.Methods) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !keep(s.methods, endpoint, methods) {
		return
	}
	for p := range s.peers {
		p.methods[endpoint] = true
	}
	s.wake()
}

// keep stores the value of a key, or deletes the key if the value is zero, and reports whether
// anything changed.
func keep[K, V comparable](all map[K]V, key K, is V) (fresh bool) {
	var none V
	fresh = all[key] != is
	if all[key] = is; is == none {
		delete(all, key)
	}
	return fresh
}

// Behind returns, sorted, the processes that may still send requests for a VModel to its earlier
// target: those that have not acknowledged the VModel's latest change, and those that disconnected
// recently.
func (s *Server) Behind(key decide.Key) []string {
	behind := s.behind(func(p *peer) bool { return p.vmodels[key] || p.moving[key] > 0 })
	return slices.DeleteFunc(behind, func(process string) bool { return process == startName })
}

// StillSending returns, sorted, the processes that may not know yet that endpoints are leaving, and
// why: those that have not acknowledged it, and those that disconnected recently. One empty name
// stands for all extprocs of an earlier control that have not reconnected yet.
func (s *Server) StillSending(endpoints []string) []string {
	behind := s.behind(func(p *peer) bool {
		return slices.ContainsFunc(endpoints, func(e string) bool { return p.leaving[e] || p.parting[e] > 0 })
	})
	if i := slices.Index(behind, startName); i >= 0 { // startName sorts first, like ""
		behind[i] = ""
	}
	return behind
}

// behind returns, sorted, the processes with a peer for which is returns true, and the processes
// that disconnected recently, including startName.
func (s *Server) behind(is func(*peer) bool) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	behind := slices.Collect(maps.Keys(s.absent))
	for p := range s.peers {
		if is(p) {
			behind = append(behind, p.process)
		}
	}
	slices.Sort(behind)
	return slices.Compact(behind)
}

// Ready declares that everything published so far is the complete state.
func (s *Server) Ready() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = true
	s.wake()
}

func (s *Server) wake() {
	for p := range s.peers {
		p.wake()
	}
}

func (p *peer) wake() {
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// setCopy stores the published state of a copy. The caller holds mu.
func (s *Server) setCopy(key decide.CopyKey, c decide.CopyChange) {
	is := published{placementproto.State(c.State), c.Limit}
	if _, known := s.copies[key]; !known && (c.State >= decide.Loaded || c.Earlier) && s.absent[startName] != nil {
		s.inherited[key] = true
	}
	if c.State == decide.Draining {
		s.drain(key)
	} else {
		delete(s.drains, key) // the copy is gone, or the drain's time limit has passed
	}
	if !keep(s.copies, key, is) { // zero means GONE: delete the entry
		return
	}
	for p := range s.peers {
		p.copies[key] = true
	}
}

// Connect serves one extproc until it disconnects.
func (s *Server) Connect(stream placement.Placement_ConnectServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetProcess() == "" {
		return status.Error(codes.InvalidArgument, "the first Report names no process")
	}
	p := s.join(first)
	s.placer.Observed(p.name, nil, &conditions.Extproc{Process: p.process}) // also if its version reports no states
	s.log.Info("an extproc connected", "process", p.process)
	defer func() {
		s.part(p)
		s.log.Info("an extproc disconnected", "process", p.process)
	}()
	ended := make(chan error, 1)
	go func() { // ends with the stream, at the latest when Connect returns
		for report := first; ; {
			s.report(p, report)
			if report, err = stream.Recv(); err != nil {
				ended <- err
				return
			}
		}
	}()
	others := time.NewTicker(othersInterval)
	defer others.Stop()
	var told time.Time // when backlogs were last sent
	backlogs := time.NewTimer(time.Hour)
	backlogs.Stop()
	defer backlogs.Stop()
	for {
		var changed exchanged
		select {
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-s.closed:
			return status.Error(codes.Unavailable, "control is stopping")
		case <-others.C:
			s.count(p)
			s.limits.tick()
		case <-p.page.news:
			backlogs.Reset(max(0, backlogsInterval-time.Since(told)))
			continue
		case told = <-backlogs.C:
			changed.backlogs = s.ledger.take(p.page, told)
			changed.waiting, changed.clock = s.turns.take(p.waiting, told)
		case <-p.news:
		}
		for {
			update := s.next(p, changed)
			if update == nil {
				break
			}
			changed = exchanged{}
			if err := stream.Send(update); err != nil {
				return err
			}
		}
	}
}

// join adds a stream with this first Report, and marks the complete state to be sent to it.
func (s *Server) join(first *placement.Report) *peer {
	process, page := first.GetProcess(), s.ledger.join(time.Now())
	waiting := s.turns.join(page.news)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joined++
	p := &peer{
		process: process, name: fmt.Sprintf("%s/%d", process, s.joined), news: make(chan struct{}, 1), page: page, waiting: waiting,
		endpoints: true,
		copies:    keysOf(s.copies), failures: keysOf(s.failures), registered: keysOf(s.registered), vmodels: keysOf(s.vmodels),
		leaving: keysOf(s.leaving), methods: keysOf(s.methods),
		lessons: keysOf(s.lessons), announced: make(map[decide.Key]uint64), moving: make(map[decide.Key]uint64),
		parting:  make(map[string]uint64),
		inFlight: make(map[decide.CopyKey]int), others: make(map[decide.CopyKey]int), moved: make(map[decide.CopyKey]int),
		responses: make(map[string]bool), sentProfiles: make(map[profileKey]bool), ownEvidence: make(map[profileKey]float64),
		queries: queries{program: first.GetProgram(), open: make(map[uint64]chan<- *placement.Answer)},
	}
	for _, id := range s.responses.Keys() {
		p.responses[id] = true
	}
	s.peers[p] = true
	for _, d := range s.drains {
		d.peers[p] = 0
	}
	if timer := s.absent[process]; timer != nil {
		timer.Stop()
		delete(s.absent, process)
		s.release(func(d *drain) { delete(d.absent, process) }) // this ends no drain, since p has joined
	}
	s.sharing = max(s.sharing, min(int(first.GetSharing()), maxSharing))
	s.apportion()
	p.wake()
	return p
}

func keysOf[K comparable, V any](all map[K]V) map[K]bool {
	keys := make(map[K]bool, len(all))
	for key := range all {
		keys[key] = true
	}
	return keys
}

// part removes a stream and everything that it reported. Reports that arrive later are ignored.
func (s *Server) part(p *peer) {
	p.reporting.Lock()
	p.ended = true
	p.reporting.Unlock()
	s.ledger.part(p.page, time.Now())
	s.turns.part(p.waiting)
	s.limits.part(p)
	s.placer.Unwanted(p.name)
	s.mu.Lock()
	delete(s.peers, p)
	p.queries.end()
	s.acknowledged()
	s.leave(p.process)
	over := s.release(func(d *drain) {
		if _, waits := d.peers[p]; waits {
			delete(d.peers, p)
			d.absent[p.process] = true
		}
	})
	left := s.totals(p.inFlight)
	s.mu.Unlock()
	s.placer.InFlight(left)
	s.tell(over)
}

// totals returns the number of requests in flight of all extprocs at each of these copies. The
// caller holds mu.
func (s *Server) totals(of map[decide.CopyKey]int) map[decide.CopyKey]int {
	all := make(map[decide.CopyKey]int, len(of))
	for key := range of {
		n := 0
		for p := range s.peers {
			n += p.inFlight[key]
		}
		all[key] = n
	}
	return all
}

// report records a Report of an extproc.
func (s *Server) report(p *peer, r *placement.Report) {
	p.reporting.Lock()
	defer p.reporting.Unlock()
	if p.ended {
		return
	}
	now := time.Now()
	s.ledger.report(p.page, r.GetBacklogs(), now)
	s.turns.report(p.waiting, r.GetWaiting())
	s.limits.report(p, r.GetLimits())
	if leaving := r.GetLeaving(); len(leaving) > 0 { // before wanted models, which must not be loaded at leaving endpoints
		all := make(map[string]decide.Leaving, len(leaving))
		for _, l := range leaving {
			all[l.GetEndpoint()] = placementproto.LeavingOf(l, now)
		}
		s.placer.Leaving(p.name, all)
	}
	for _, w := range r.GetWanted() {
		key, _ := placementproto.ModelOf(w.GetKey())
		s.placer.Wanted(p.name, key, decide.Want{
			Requests: int(w.GetRequests()), Since: now.Add(-time.Duration(w.GetWaitedMs()) * time.Millisecond), Unusable: w.GetUnusable(),
		})
	}
	if usage := r.GetUsage(); len(usage) > 0 {
		used := make(map[decide.Key]decide.Use, len(usage))
		for _, u := range usage {
			key, _ := placementproto.ModelOf(u.GetKey())
			used[key] = decide.Use{
				Requests: int(u.GetRequests()), Last: now.Add(-time.Duration(u.GetIdleMs()) * time.Millisecond),
				Waited: time.Duration(u.GetWaitedMs()) * time.Millisecond, //nolint:gosec // a wrong one has one copy more come
			}
		}
		s.placer.Used(used)
	}
	if states, plane := r.GetStates(), r.GetDataPlane(); len(states) > 0 || plane != nil {
		s.placer.Observed(p.name, observed(states, now), extprocOf(p.process, plane))
	}
	changed := make(map[decide.CopyKey]int, len(r.GetInFlight()))
	s.mu.Lock()
	for _, f := range r.GetInFlight() {
		key, _ := placementproto.CopyOf(f.GetCopy())
		changed[key] = 0
		if p.inFlight[key] = int(f.GetRequests()); f.GetRequests() == 0 {
			delete(p.inFlight, key)
		}
	}
	s.learned(p, r.GetLessons(), now)
	s.recordResponses(p, r.GetResponses())
	p.queries.answered(r.GetAnswers())
	p.applied = max(p.applied, r.GetApplied())
	if p.question = max(p.question, r.GetQuestion()); p.question != p.answered {
		p.wake()
	}
	if n := len(p.announced); n > 0 {
		maps.DeleteFunc(p.announced, func(_ decide.Key, version uint64) bool { return version <= p.applied })
		if len(p.announced) < n {
			p.late = false
			s.acknowledged()
		}
	}
	maps.DeleteFunc(p.moving, func(_ decide.Key, version uint64) bool { return version <= p.applied })
	maps.DeleteFunc(p.parting, func(_ string, version uint64) bool { return version <= p.applied })
	over := s.settled(p)
	changed = s.totals(changed)
	s.mu.Unlock()
	if len(changed) > 0 {
		s.placer.InFlight(changed)
	}
	s.tell(over)
	for _, m := range r.GetMissing() {
		key, _ := placementproto.CopyOf(m)
		s.placer.Missing(key)
	}
}

// count determines which numbers of requests in flight of the others must be sent to an extproc.
func (s *Server) count(p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := make(map[decide.CopyKey]int)
	for o := range s.peers {
		if o != p {
			for key, n := range o.inFlight {
				now[key] += n
			}
		}
	}
	for key := range p.others {
		if _, ok := now[key]; !ok {
			p.moved[key] = 0
		}
	}
	for key, n := range now {
		if p.others[key] != n {
			p.moved[key] = n
		}
	}
	p.others = now
}

// exchanged is what other extprocs reported about their work and their waiting requests.
type exchanged struct {
	backlogs []*placement.Backlog
	waiting  []*placement.OthersWaiting
	clock    time.Duration
}

// next returns the Update to send to an extproc, including what others reported; nil if there is
// none.
func (s *Server) next(p *peer, others exchanged) *placement.Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := &placement.Update{Version: p.version + 1, Backlogs: others.backlogs, Waiting: others.waiting, Limits: s.limits.take(p)}
	if len(u.Waiting) > 0 {
		u.ClockUs = uint64(others.clock.Microseconds()) //nolint:gosec // since the start
	}
	room := maxSent
	if p.apportioned {
		u.Share, p.apportioned = p.portion.wire(), false
	}
	if p.endpoints {
		u.Endpoints = &placement.Endpoints{Addresses: s.endpoints}
		p.endpoints = false
	}
	for _, endpoint := range take(p.methods, &room) { // before the copies at these endpoints
		u.Runtimes = append(u.Runtimes, &placement.Runtime{Endpoint: endpoint, Methods: s.methods[endpoint].Lines()})
	}
	for _, key := range take(p.copies, &room) {
		is := s.copies[key] // zero if missing, which means GONE
		u.Copies = append(u.Copies, &placement.Copy{
			Copy: placementproto.Copy(key), State: is.state, Limit: uint32(is.limit), //nolint:gosec // control bounds it
		})
		if d := s.drains[key]; d != nil {
			if _, waits := d.peers[p]; waits {
				d.peers[p] = u.Version
			}
		}
	}
	for _, key := range take(p.failures, &room) {
		u.Failures = append(u.Failures, &placement.Failure{Key: placementproto.Model(key), Reason: string(s.failures[key])})
	}
	for _, key := range take(p.registered, &room) {
		u.Registered = append(u.Registered, &placement.Registered{Key: placementproto.Model(key), Gone: !s.registered[key]})
		p.announced[key] = u.Version
	}
	for _, key := range take(p.vmodels, &room) {
		to := s.vmodels[key]
		u.Vmodels = append(u.Vmodels, &placement.VModel{
			Key: placementproto.Model(key), Active: to.Active, Canary: to.Canary,
			Percent: uint32(to.Percent), //nolint:gosec // a percentage
		})
		p.moving[key] = u.Version
	}
	now := time.Now()
	for _, address := range take(p.leaving, &room) {
		u.Leaving = append(u.Leaving, placementproto.Leaving(address, s.leaving[address], now)) // zero: the endpoint stays
		p.parting[address] = u.Version
	}
	u.Lessons, u.Responses = s.profilesFor(p, now), s.responsesFor(p)
	for key, n := range p.moved {
		u.InFlight = append(u.InFlight, &placement.InFlight{Copy: placementproto.Copy(key), Requests: uint32(n)})
	}
	clear(p.moved)
	u.Queries = p.queries.take()
	if s.ready && !p.sentAll && room > 0 {
		u.Complete, p.sentAll = true, true
	}
	if p.sentAll && room > 0 && p.question != p.answered { // everything published has been sent
		u.Answer, p.answered = p.question, p.question
	}
	if len(u.Copies)+len(u.Failures)+len(u.Registered)+len(u.Vmodels)+len(u.Leaving)+len(u.Runtimes)+len(u.InFlight)+len(u.Backlogs)+
		len(u.Waiting)+len(u.Lessons)+len(u.Responses)+len(u.Queries) == 0 && u.Endpoints == nil && u.Share == nil &&
		u.Limits == nil && !u.Complete && u.Answer == 0 {
		return nil
	}
	p.version = u.Version
	return u
}

// take removes at most room keys from a set, returns them, and subtracts their number from room.
func take[K comparable](set map[K]bool, room *int) (keys []K) {
	for key := range maps.Keys(set) {
		if *room == 0 {
			break
		}
		keys = append(keys, key)
		delete(set, key)
		*room--
	}
	return keys
}
