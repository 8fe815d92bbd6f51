// Package placementserver serves extprocs: what control knows of copies goes to each of them, what
// requests need comes from them. It keeps what placement published and sends each extproc what it
// was not told yet, so that a slow one or one that comes back is no case of its own.
//
// It also finds out when a copy that is to go is drained: when every extproc has said that it sends
// nothing there any more, and that none of its requests is there.
package placementserver

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

const (
	// othersInterval is how often extprocs are told of each other's requests in flight for copies.
	othersInterval = time.Second
	// maxSent bounds how much one Update says, in entries: a first one of 20,000 models comes in
	// several.
	maxSent = 2000
)

// Placer is told what extprocs say. Package place has it.
type Placer interface {
	Wanted(who string, key decide.Key, w decide.Want)
	Unwanted(who string)
	Leaving(who string, all map[string]decide.Leaving)
	Used(all map[decide.Key]decide.Use)
	InFlight(all map[decide.CopyKey]int)
	Missing(key decide.CopyKey)
	Drained(key decide.CopyKey)
}

// Server is the board that placement writes on, and serves the placement stream. Make one with
// [New]. It is safe for concurrent use.
type Server struct {
	placement.UnimplementedPlacementServer
	log    *slog.Logger
	placer Placer
	closed chan struct{}
	ledger *ledger

	mu         sync.Mutex // guards the following
	ready      bool
	endpoints  []string
	copies     map[decide.CopyKey]copied    // none of GONE
	failures   map[decide.Key]decide.Reason // none that is empty
	registered map[decide.Key]bool
	vmodels    map[decide.Key]decide.Switch // none that is zero
	leaving    map[string]decide.Leaving    // none that stays
	methods    map[string]engine.Methods    // by endpoint, none that is empty
	peers      map[*peer]bool
	joined     int // streams so far
	drains     map[decide.CopyKey]*drain
	absent     map[string]*time.Timer // processes that may still send requests, by name
	// inherited are copies that this process found loaded, or that an earlier process began to
	// load, while extprocs of that process may still reconnect. Those know no other copies.
	inherited map[decide.CopyKey]bool
	sharing   int // processes among which an earlier process divided limits, as extprocs report
	lessons   lessons
	responses *responses
	known     chan struct{} // closed and replaced when an extproc acknowledges a registration
}

// copied is what is published of a copy.
type copied struct {
	state placement.Copy_State
	limit int
}

// peer is one stream.
type peer struct {
	process string
	name    string        // tells it from other streams of the process
	news    chan struct{} // capacity 1; never closed
	page    *page

	reporting sync.Mutex // held while what it says is taken, so that nothing is after its end; before Server.mu
	ended     bool

	// Guarded by Server.mu.
	version     uint64 // of the last Update
	applied     uint64
	told        bool // complete
	endpoints   bool // are to be told
	portion     portion
	apportioned bool // portion is to be told
	copies      map[decide.CopyKey]bool
	failures    map[decide.Key]bool
	registered  map[decide.Key]bool
	vmodels     map[decide.Key]bool
	announced   map[decide.Key]uint64 // registered that were told in a version that is not known to be in force
	late        bool                  // it missed announceLimit; no registration waits for it until it answers
	moving      map[decide.Key]uint64 // VModels that were told in a version that is not known to be in force
	leaving     map[string]bool
	methods     map[string]bool
	parting     map[string]uint64 // endpoints of which why they leave was told in a version that is not known to be in force
	inFlight    map[decide.CopyKey]int
	others      map[decide.CopyKey]int // as told
	moved       map[decide.CopyKey]int // of others, to be told
	lessons     map[lessonKey]bool     // may be to be told
	taught      map[lessonKey]bool     // were told
	knows       map[lessonKey]float64  // how well founded what it told itself was
	responses   map[string]bool        // stored responses whose makers are to be told
	question    uint64                 // the last one
	answered    uint64                 // the last question that was answered
}

// New returns a Server that knows nothing. Its Placer is set before it serves.
func New(log *slog.Logger) *Server {
	s := &Server{
		log: log, closed: make(chan struct{}), ledger: newLedger(),
		copies: make(map[decide.CopyKey]copied), failures: make(map[decide.Key]decide.Reason), registered: make(map[decide.Key]bool),
		vmodels: make(map[decide.Key]decide.Switch), leaving: make(map[string]decide.Leaving), methods: make(map[string]engine.Methods),
		peers: make(map[*peer]bool), drains: make(map[decide.CopyKey]*drain), absent: make(map[string]*time.Timer),
		inherited: make(map[decide.CopyKey]bool),
		lessons:   make(lessons), responses: newResponses(), known: make(chan struct{}),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave(startName)
	return s
}

// SetPlacer says who is told what extprocs say. It is called once, before the Server serves.
func (s *Server) SetPlacer(p Placer) { s.placer = p }

// Close ends all streams. Extprocs serve on with what they know.
func (s *Server) Close() { close(s.closed) }

// Peers is how many extprocs there are.
func (s *Server) Peers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.peers)
}

// Publish takes what changed.
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

// Takes takes which gRPC methods the engine of an endpoint takes.
func (s *Server) Takes(endpoint string, methods engine.Methods) {
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

// keep notes what is said of a key, nothing if that is zero, and returns whether it is new.
func keep[K, V comparable](all map[K]V, key K, is V) (fresh bool) {
	var none V
	fresh = all[key] != is
	if all[key] = is; is == none {
		delete(all, key)
	}
	return fresh
}

// Behind returns the processes that may still send requests for a VModel where they went before:
// they have not said that the latest switch is in force, or have been cut off. They are in order.
func (s *Server) Behind(key decide.Key) []string {
	behind := s.behind(func(p *peer) bool { return p.vmodels[key] || p.moving[key] > 0 })
	return slices.DeleteFunc(behind, func(process string) bool { return process == startName })
}

// StillSending returns the processes that may send requests to endpoints as if nobody had said why
// they leave: they have not said that this is in force, or have been cut off. They are in order;
// extprocs of an earlier process that have not come back yet are one without a name.
func (s *Server) StillSending(endpoints []string) []string {
	behind := s.behind(func(p *peer) bool {
		return slices.ContainsFunc(endpoints, func(e string) bool { return p.leaving[e] || p.parting[e] > 0 })
	})
	if i := slices.Index(behind, startName); i >= 0 { // it is the first: no name is before it
		behind[i] = ""
	}
	return behind
}

// behind returns the processes that have not put into force what they were told, as is said of each
// stream, or have been cut off: in order, startName among them.
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

// Ready says that what was published is all that there is.
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

var states = map[decide.CopyState]placement.Copy_State{
	decide.Queued: placement.Copy_LOADING, decide.Loading: placement.Copy_LOADING, decide.Loaded: placement.Copy_LOADED,
	decide.Draining: placement.Copy_UNLOADING, decide.Unloading: placement.Copy_UNLOADING,
}

// setCopy takes what is published of a copy. The caller holds mu.
func (s *Server) setCopy(key decide.CopyKey, c decide.CopyChange) {
	is := copied{state: placement.Copy_GONE}
	if c.There {
		is = copied{states[c.State], c.Limit}
	}
	if _, known := s.copies[key]; !known && c.There && (c.State >= decide.Loaded || c.Earlier) && s.absent[startName] != nil {
		s.inherited[key] = true
	}
	if c.There && c.State == decide.Draining {
		s.drain(key)
	} else {
		delete(s.drains, key) // it is gone, or the limit has passed
	}
	if !keep(s.copies, key, is) { // the zero State is GONE
		return
	}
	for p := range s.peers {
		p.copies[key] = true
	}
}

// Connect serves one extproc until it leaves.
func (s *Server) Connect(stream placement.Placement_ConnectServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetProcess() == "" {
		return status.Error(codes.InvalidArgument, "the first Report names no process")
	}
	p := s.join(first.GetProcess(), int(first.GetSharing()))
	s.log.Info("an extproc connected", "process", p.process)
	defer func() {
		s.part(p)
		s.log.Info("an extproc disconnected", "process", p.process)
	}()
	ended := make(chan error, 1)
	go func() { // ends with the stream, at the latest when this returns
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
	var told time.Time // when backlogs were last
	backlogs := time.NewTimer(time.Hour)
	backlogs.Stop()
	defer backlogs.Stop()
	for {
		var changed []*placement.Backlog
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
		case <-p.page.news:
			backlogs.Reset(max(0, backlogsInterval-time.Since(told)))
			continue
		case told = <-backlogs.C:
			changed = s.ledger.take(p.page, told)
		case <-p.news:
		}
		for {
			update := s.next(p, changed)
			if update == nil {
				break
			}
			changed = nil
			if err := stream.Send(update); err != nil {
				return err
			}
		}
	}
}

// join begins a stream: all that is known is to be told. Sharing is among how many processes the
// extproc was told that limits are shared.
func (s *Server) join(process string, sharing int) *peer {
	page := s.ledger.join(time.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joined++
	p := &peer{
		process: process, name: fmt.Sprintf("%s/%d", process, s.joined), news: make(chan struct{}, 1), page: page, endpoints: true,
		copies: keysOf(s.copies), failures: keysOf(s.failures), registered: keysOf(s.registered), vmodels: keysOf(s.vmodels),
		leaving: keysOf(s.leaving), methods: keysOf(s.methods),
		lessons: keysOf(s.lessons), announced: make(map[decide.Key]uint64), moving: make(map[decide.Key]uint64),
		parting:  make(map[string]uint64),
		inFlight: make(map[decide.CopyKey]int), others: make(map[decide.CopyKey]int), moved: make(map[decide.CopyKey]int),
		responses: make(map[string]bool), taught: make(map[lessonKey]bool), knows: make(map[lessonKey]float64),
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
		s.release(func(d *drain) { delete(d.absent, process) }) // none is over: p has come
	}
	s.sharing = max(s.sharing, min(sharing, maxSharing))
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

// part ends a stream: what it said is forgotten, and what comes of it still is not heard.
func (s *Server) part(p *peer) {
	p.reporting.Lock()
	p.ended = true
	p.reporting.Unlock()
	s.ledger.part(p.page, time.Now())
	s.placer.Unwanted(p.name)
	s.mu.Lock()
	delete(s.peers, p)
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

// totals is how many requests there are at copies, from everybody. The caller holds mu.
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

// report takes what an extproc says.
func (s *Server) report(p *peer, r *placement.Report) {
	p.reporting.Lock()
	defer p.reporting.Unlock()
	if p.ended {
		return
	}
	now := time.Now()
	s.ledger.report(p.page, r.GetBacklogs(), now)
	if leaving := r.GetLeaving(); len(leaving) > 0 { // before what is wanted, which must not be loaded there
		all := make(map[string]decide.Leaving, len(leaving))
		for _, l := range leaving {
			all[l.GetEndpoint()] = leavingOf(l, now)
		}
		s.placer.Leaving(p.name, all)
	}
	for _, w := range r.GetWanted() {
		s.placer.Wanted(p.name, keyOf(w.GetKey()), decide.Want{
			Requests: int(w.GetRequests()), Since: now.Add(-time.Duration(w.GetWaitedMs()) * time.Millisecond), Unusable: w.GetUnusable(),
		})
	}
	if usage := r.GetUsage(); len(usage) > 0 {
		used := make(map[decide.Key]decide.Use, len(usage))
		for _, u := range usage {
			used[keyOf(u.GetKey())] = decide.Use{
				Requests: int(u.GetRequests()), Last: now.Add(-time.Duration(u.GetIdleMs()) * time.Millisecond),
				Waited: time.Duration(u.GetWaitedMs()) * time.Millisecond, //nolint:gosec // a wrong one has one copy more come
			}
		}
		s.placer.Used(used)
	}
	changed := make(map[decide.CopyKey]int, len(r.GetInFlight()))
	s.mu.Lock()
	for _, f := range r.GetInFlight() {
		key := copyKeyOf(f.GetCopy())
		changed[key] = 0
		if p.inFlight[key] = int(f.GetRequests()); f.GetRequests() == 0 {
			delete(p.inFlight, key)
		}
	}
	s.learned(p, r.GetLessons(), now)
	s.made(p, r.GetResponses())
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
		s.placer.Missing(copyKeyOf(m))
	}
}

// count finds out which of the others' requests in flight an extproc is to be told of.
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

// next returns what an extproc is to be told, backlogs too, nil if that is nothing.
func (s *Server) next(p *peer, backlogs []*placement.Backlog) *placement.Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := &placement.Update{Version: p.version + 1, Backlogs: backlogs}
	room := maxSent
	if p.apportioned {
		u.Share, p.apportioned = p.portion.wire(), false
	}
	if p.endpoints {
		u.Endpoints = &placement.Endpoints{Addresses: s.endpoints}
		p.endpoints = false
	}
	for _, endpoint := range take(p.methods, &room) { // before the copies there
		u.Runtimes = append(u.Runtimes, &placement.Runtime{Endpoint: endpoint, Methods: s.methods[endpoint].Lines()})
	}
	for _, key := range take(p.copies, &room) {
		is := s.copies[key] // the zero State is GONE
		u.Copies = append(u.Copies, &placement.Copy{Copy: copyKey(key), State: is.state,
			Limit: uint32(is.limit)}) //nolint:gosec // control bounds it
		if d := s.drains[key]; d != nil {
			if _, waits := d.peers[p]; waits {
				d.peers[p] = u.Version
			}
		}
	}
	for _, key := range take(p.failures, &room) {
		u.Failures = append(u.Failures, &placement.Failure{Key: modelKey(key), Reason: string(s.failures[key])})
	}
	for _, key := range take(p.registered, &room) {
		u.Registered = append(u.Registered, &placement.Registered{Key: modelKey(key), Gone: !s.registered[key]})
		p.announced[key] = u.Version
	}
	for _, key := range take(p.vmodels, &room) {
		to := s.vmodels[key]
		u.Vmodels = append(u.Vmodels, &placement.VModel{Key: modelKey(key), Active: to.Active, Canary: to.Canary,
			Percent: uint32(to.Percent)}) //nolint:gosec // a percentage
		p.moving[key] = u.Version
	}
	now := time.Now()
	for _, address := range take(p.leaving, &room) {
		u.Leaving = append(u.Leaving, wireLeaving(address, s.leaving[address], now)) // the zero Leaving stays
		p.parting[address] = u.Version
	}
	u.Lessons, u.Responses = s.teach(p, now), s.makers(p)
	for key, n := range p.moved {
		u.InFlight = append(u.InFlight, &placement.InFlight{Copy: copyKey(key), Requests: uint32(n)})
	}
	clear(p.moved)
	if s.ready && !p.told && room > 0 {
		u.Complete, p.told = true, true
	}
	if p.told && room > 0 && p.question != p.answered { // nothing that was published is left
		u.Answer, p.answered = p.question, p.question
	}
	if len(u.Copies)+len(u.Failures)+len(u.Registered)+len(u.Vmodels)+len(u.Leaving)+len(u.Runtimes)+len(u.InFlight)+len(u.Backlogs)+
		len(u.Lessons)+len(u.Responses) == 0 && u.Endpoints == nil && u.Share == nil && !u.Complete && u.Answer == 0 {
		return nil
	}
	p.version = u.Version
	return u
}

// take takes as many keys out of a set as there is room for.
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

func leavingOf(l *placement.Leaving, now time.Time) decide.Leaving {
	why := decide.Leaving{Terminating: l.GetTerminating()}
	if l.MigratesMs != nil {
		why.Migrates = now.Add(time.Duration(l.GetMigratesMs()) * time.Millisecond) //nolint:gosec // a wrong one is soon over
	}
	if l.StoppingMs != nil {
		why.Stopping = now.Add(-time.Duration(l.GetStoppingMs()) * time.Millisecond)
	}
	return why
}

func wireLeaving(address string, why decide.Leaving, now time.Time) *placement.Leaving {
	l := &placement.Leaving{Endpoint: address, Terminating: why.Terminating}
	if !why.Migrates.IsZero() {
		l.MigratesMs = new(uint64(max(0, why.Migrates.Sub(now)).Milliseconds()))
	}
	if !why.Stopping.IsZero() {
		l.StoppingMs = new(uint64(max(0, now.Sub(why.Stopping)).Milliseconds()))
	}
	return l
}

func keyOf(k *placement.ModelKey) decide.Key {
	namespace, name, _ := strings.Cut(k.GetPool(), "/")
	return decide.Key{Pool: objects.Name{Namespace: namespace, Name: name}, ID: k.GetModel()}
}

func modelKey(k decide.Key) *placement.ModelKey {
	return &placement.ModelKey{Pool: k.Pool.String(), Model: k.ID}
}

func copyKeyOf(c *placement.CopyKey) decide.CopyKey {
	return decide.CopyKey{Key: keyOf(c.GetKey()), Endpoint: c.GetEndpoint()}
}

func copyKey(k decide.CopyKey) *placement.CopyKey {
	return &placement.CopyKey{Key: modelKey(k.Key), Endpoint: k.Endpoint}
}
