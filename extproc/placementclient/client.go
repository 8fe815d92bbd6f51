// Package placementclient is extproc's client of control. It reports for which models requests wait
// and how models are used, and applies control's updates of copies. It runs outside the path of
// requests. When the stream breaks, the last updates remain in effect until a new stream has sent
// the complete state.
package placementclient

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"time"

	"google.golang.org/grpc"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/limits"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/internal/query"
)

const (
	// often is the interval of reports of use and of requests in flight.
	often = time.Second
	// seldom is the interval of reports of learned profiles.
	seldom = 5 * time.Second
	// soon delays a report of changed numbers of waiting requests, so that one report covers
	// several changes.
	soon = 100 * time.Millisecond
	// DefaultInterval is the minimum time between two reports of the work at endpoints.
	DefaultInterval = 20 * time.Millisecond
	// questionInterval is the minimum time between two questions to control whether this process
	// has all updates.
	questionInterval = 20 * time.Millisecond
	// limitsInterval is the interval of reports of the use of limits of routes.
	limitsInterval = 250 * time.Millisecond
	// shortest and longest limit the time between two attempts to reach control.
	shortest = 50 * time.Millisecond
	longest  = 2 * time.Second
	// maxUpdate is the maximum size of an Update. A complete one may have 100,000 models of 100
	// bytes.
	maxUpdate = 64 << 20
)

// News signals changes of waiting requests: of the models that they wait for, or only of the
// numbers of requests. Each change is a signal for the turns of several processes, too. Create it
// with [NewNews]. It is safe for concurrent use.
type News struct {
	models, counts, turns chan struct{} // capacity 1; never closed
}

// NewNews returns a News without pending signals.
func NewNews() *News {
	return &News{make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)}
}

// Changed signals that waiting requests have changed. Urgent means that they wait for other models;
// otherwise only their numbers have changed. It never blocks.
func (n *News) Changed(urgent bool) {
	to := n.counts
	if urgent {
		to = n.models
	}
	for _, to := range [...]chan struct{}{to, n.turns} {
		select {
		case to <- struct{}{}:
		default:
		}
	}
}

// Config configures a Client.
type Config struct {
	// Target is the address of control in gRPC's format. Dial are the options of the connection.
	Target string
	Dial   []grpc.DialOption
	// News receives the signals of Flow.
	News  *News
	Fleet *fleet.Fleet
	Flow  *flow.Flow
	// DataPlane returns which requests reach this process; nil if none but those of Gateways do.
	DataPlane func() *placement.DataPlane
	// Limits are the limits of routes, which several processes share; nil if there are none.
	Limits *limits.Book
	Meter  *metrics.Meter
	Log    *slog.Logger
	// Lost is how long control may be silent before requests that need a load fail; zero means
	// DefaultLost.
	Lost time.Duration
	// Interval is the minimum time between two reports of the work at endpoints; zero means
	// DefaultInterval.
	Interval time.Duration
	// Name and Version describe this process to users of control. Queries answers what control asks
	// for them.
	Name, Version string
	Queries       query.Handlers
}

// Client exchanges messages with control. Create it with [New], and run it with [Client.Run].
type Client struct {
	Config
	process string
	silence silence
}

// New returns a Client without a connection.
func New(c Config) *Client {
	if c.Interval == 0 {
		c.Interval = DefaultInterval
	}
	if c.Lost == 0 {
		c.Lost = DefaultLost
	}
	return &Client{Config: c, process: strconv.FormatUint(rand.Uint64(), 36)}
}

// Run keeps a connection to control until ctx ends. It reconnects when the connection breaks.
func (c *Client) Run(ctx context.Context) error {
	pause := shortest
	silent := false // whether it was logged that control does not answer
	c.Meter.Connected(false)
	defer c.watch()()
	for ctx.Err() == nil {
		complete, err := c.connect(ctx)
		c.silence.synced.Store(false)
		c.Meter.Connected(false)
		if ctx.Err() != nil {
			return nil
		}
		if complete {
			pause, silent = shortest, false
		}
		if !silent {
			c.Log.Warn("cannot reach control; keeping the last placement state; retrying", "control", c.Target, "err", err)
			silent = true
		}
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, longest)
	}
	return nil
}

// connect serves one stream from start to end. Complete reports whether control sent its complete
// state.
func (c *Client) connect(parent context.Context) (complete bool, err error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent)) // outlives ends, so that the end can be reported
	defer cancel()
	connected := context.AfterFunc(parent, cancel)
	conn, err := grpc.NewClient(c.Target, append(c.Dial, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxUpdate)))...)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	stream, err := placement.NewPlacementClient(conn).Connect(ctx)
	if err != nil {
		return false, err
	}
	connected()
	defer context.AfterFunc(parent, func() { time.AfterFunc(leaveLimit, cancel) })()
	updates := make(chan *placement.Update)
	ended := make(chan error, 1)
	go func() { // the goroutine ends with the stream, which ends with ctx
		for {
			u, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case updates <- u:
			case <-ctx.Done():
				return
			}
		}
	}()

	s := &connection{
		Client: c, stream: stream, receiver: newReceiver(), reporter: newReporter(), usedAt: time.Now(),
		answers: make(chan *placement.Answer), // received until the stream ends, and with it ctx
	}
	c.Fleet.ReportMakers()
	defer c.Fleet.Update(fleet.Later, func(s *endpointstate.State, now time.Time) { // scrapes find the requests of other processes
		s.ForgetPeers(fleet.Steady(now))
	})
	c.Fleet.ForgetQuestions()
	defer c.Fleet.ForgetQuestions()
	if c.Flow.Turns != nil {
		c.Flow.Turns.Begin()
	}
	if c.Limits != nil {
		c.Limits.Connect()
	}
	if err := s.report(wantedNow | flying | allFlying | backlogs | lessons | question | states | turnsNow | limitsNow); err != nil {
		return false, err
	}
	tick := time.NewTicker(often)
	defer tick.Stop()
	teach := time.NewTicker(seldom)
	defer teach.Stop()
	limited := time.NewTicker(limitsInterval)
	defer limited.Stop()
	var counts <-chan time.Time // fires when changed counts must be reported
	told := time.Now()          // time of the last report of backlogs
	asked := time.Now()         // time of the last question
	asks := time.NewTimer(time.Hour)
	asks.Stop()
	defer asks.Stop()
	moved := time.NewTimer(time.Hour)
	moved.Stop()
	defer moved.Stop()
	for {
		var what topics
		select {
		case err := <-ended:
			return s.receiver.complete, err
		case <-parent.Done():
			s.leave(ended)
			return s.receiver.complete, parent.Err()
		case u := <-updates:
			s.query(ctx, u.GetQueries())
			applied := s.apply(u)
			if len(u.GetWaiting()) > 0 {
				moved.Reset(max(0, c.Interval-time.Since(told))) // this process may pass its turns now
			}
			if c.heard(); applied {
				what = flying
			}
			if s.hearLimits(u) {
				what |= limitsNow
			}
		case a := <-s.answers:
			s.querying--
			if err := s.answer(a); err != nil {
				return s.receiver.complete, err
			}
			continue
		case <-c.News.models:
			what, counts = wantedNow, nil
		case <-c.News.counts:
			if counts == nil {
				counts = time.After(soon)
			}
			continue
		case <-counts:
			what, counts = wantedNow, nil
		case <-c.News.turns:
			moved.Reset(max(0, c.Interval-time.Since(told)))
			continue
		case <-c.Fleet.Moves():
			moved.Reset(max(0, c.Interval-time.Since(told)))
			continue
		case told = <-moved.C:
			what = backlogs | made | turnsNow
		case <-c.Fleet.Questions():
			asks.Reset(max(0, questionInterval-time.Since(asked)))
			continue
		case asked = <-asks.C:
			what = question
		case <-c.Fleet.Urgent():
			what = flying
		case <-tick.C:
			what = wantedNow | flying | allFlying | used | made | states | turnsNow
			c.probe(s.receiver.complete)
		case <-teach.C:
			what = lessons
		case <-limited.C:
			what = limitsNow
		}
		if err := s.report(what); err != nil {
			return s.receiver.complete, err
		}
	}
}

// connection is the state of one stream. Only one goroutine uses it.
type connection struct {
	*Client
	stream       placement.Placement_ConnectClient
	receiver     *receiver
	reporter     *reporter
	applied      uint64    // version of the last applied update
	began        bool      // whether anything was reported on this stream
	acknowledged uint64    // last version that was acknowledged to control
	usedAt       time.Time // time of the last report of use
	peers        []endpointstate.Backlog
	// question is the number of the last question to control.
	question uint64
	answers  chan *placement.Answer // from goroutines that answer control's queries
	querying int                    // number of these goroutines
}

// apply applies an Update. It returns whether the Update must be acknowledged.
func (t *connection) apply(u *placement.Update) bool {
	defer t.Fleet.Answered(u.GetAnswer()) // runs after the update is applied
	now := time.Now()
	if told := u.GetBacklogs(); len(told) > 0 {
		steady := fleet.Steady(now)
		t.peers = backlogsOf(told, steady, t.peers[:0])
		t.Fleet.Update(fleet.Later, func(s *endpointstate.State, _ time.Time) { s.SetPeers(t.peers, steady) })
	}
	if told := u.GetLessons(); len(told) > 0 {
		t.Fleet.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) { s.Times.LearnFromPeers(learnedProfiles(told), now) })
	}
	t.makers(u.GetResponses())
	t.hearWaiting(u)
	if onlyOfOthers(u) {
		if t.receiver.complete && t.acknowledged == t.applied { // no earlier update awaits an acknowledgement
			t.acknowledged, t.applied = u.GetVersion(), u.GetVersion()
		}
		return false
	}
	news, ok := t.receiver.receive(u, now)
	if !ok {
		return false
	}
	t.Fleet.ApplyPlacement(news)
	t.applied = u.GetVersion()
	t.Meter.UpdateApplied(t.applied, now)
	if news.All {
		if t.Flow.Turns != nil {
			t.Flow.Turns.Complete()
		}
		t.silence.synced.Store(true)
		t.Meter.Connected(true)
		t.Log.Info("placement state synced", "control", t.Target, "endpoints", len(news.Endpoints), "copies",
			len(news.Copies))
	}
	return true
}

// topics are the subjects of a report.
type topics uint16

const (
	wantedNow topics = 1 << iota
	flying
	allFlying
	used
	backlogs
	lessons
	made
	question
	states
	turnsNow
	limitsNow
)

// report sends the changes of some topics, if there are any. It reads the requests in flight after
// the last update was applied, so that an acknowledgement includes every request that began before
// the update.
func (t *connection) report(what topics) error {
	now := time.Now()
	r := &placement.Report{
		Process: t.process, Applied: t.applied,
		Leaving: t.reporter.leaves(fleet.Read(t.Fleet, func(s *endpointstate.State) map[string]endpointstate.Leaving {
			return s.Leaving(t.Fleet.Now())
		}), now),
	}
	if what&wantedNow != 0 {
		view := t.Fleet.View()
		r.Wanted = t.reporter.wants(t.Flow.WaitingModels(), view.Unusable, now)
	}
	if what&flying != 0 {
		r.InFlight = t.reporter.flies(fleet.Read(t.Fleet, (*endpointstate.State).InFlight), what&allFlying != 0)
		r.Missing = missing(fleet.Read(t.Fleet, (*endpointstate.State).TakeMissing))
	}
	if what&used != 0 {
		r.Usage = usage(fleet.Read(t.Fleet, (*endpointstate.State).Usage), t.Flow.QueuedAtLimit(), now.Sub(t.usedAt), fleet.Steady(now))
		t.usedAt = now
	}
	if what&backlogs != 0 {
		r.Backlogs = t.reporter.backlogs(t.Fleet.Backlogs, fleet.Steady(now))
	}
	if what&turnsNow != 0 {
		r.Waiting = t.waiting()
	}
	if what&limitsNow != 0 && t.Limits != nil {
		r.Limits = t.Limits.Report()
	}
	if what&made != 0 {
		r.Responses = t.responses()
	}
	if what&lessons != 0 {
		r.Lessons = t.reporter.teaches(fleet.Read(t.Fleet, func(s *endpointstate.State) []endpointstate.LearnedProfile {
			return s.Times.LearnedProfiles(t.Fleet.Now())
		}))
	}
	if what&question != 0 {
		t.question = t.Fleet.Question()
	}
	if what&states != 0 {
		r.States = fleet.Read(t.Fleet, func(s *endpointstate.State) []*placement.EndpointState {
			return t.reporter.observes(func(visit func(endpointstate.Condition)) { endpointstate.Conditions(s, t.Fleet.Now(), visit) }, now)
		})
		if t.DataPlane != nil {
			r.DataPlane = t.reporter.serves(t.DataPlane())
		}
	}
	r.Question = t.question
	if t.began && t.applied == t.acknowledged && what&question == 0 && len(r.Lessons)+len(r.Responses)+len(r.Backlogs)+len(r.Wanted)+
		len(r.Waiting)+len(r.InFlight)+len(r.Missing)+len(r.Usage)+len(r.Leaving)+len(r.States) == 0 &&
		r.DataPlane == nil && r.Limits == nil {
		return nil
	}
	if !t.began {
		r.Sharing = uint32(fleet.Read(t.Fleet, (*endpointstate.State).Sharing)) //nolint:gosec // a number of processes
		r.Program = &placement.Program{Name: t.Name, Version: t.Version, Queries: t.Queries.Kinds()}
	}
	t.began, t.acknowledged = true, t.applied
	return t.stream.Send(r)
}
