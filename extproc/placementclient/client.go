// Package placementclient is extproc's side of its talk with control: it says which models requests
// wait for and how models are used, and puts in force what control says of copies. It runs beside
// requests and never in their way. When the stream breaks, what control said last stays in force
// until another stream has said all that there is.
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
	"github.com/headgate/headgate/extproc/metrics"
)

const (
	// often is between two reports of what changes with every request: use, and requests in flight.
	often = time.Second
	// seldom is between two reports of what was learned of engines.
	seldom = 5 * time.Second
	// soon is how long a change of how many wait for a model is kept, for more of them to come.
	soon = 100 * time.Millisecond
	// DefaultInterval is the least time between two reports of what requests still ask of endpoints.
	DefaultInterval = 20 * time.Millisecond
	// questionInterval is the least time between two questions whether all that control published
	// is in force here.
	questionInterval = 20 * time.Millisecond
	// shortest and longest are between two tries to reach control.
	shortest = 50 * time.Millisecond
	longest  = 2 * time.Second
	// maxUpdate bounds an Update. All that there is may come in one: 100,000 models of 100 bytes.
	maxUpdate = 64 << 20
)

// News is that other models are waited for than before, or as many, but by more or fewer requests.
// Make one with [NewNews]; it is safe for concurrent use.
type News struct {
	models, counts chan struct{} // capacity 1; never closed
}

// NewNews returns no news.
func NewNews() *News { return &News{make(chan struct{}, 1), make(chan struct{}, 1)} }

// Changed says that other models are waited for, or, not urgently, more or fewer requests. It never
// blocks.
func (n *News) Changed(urgent bool) {
	to := n.counts
	if urgent {
		to = n.models
	}
	select {
	case to <- struct{}{}:
	default:
	}
}

// Config is what a Client needs.
type Config struct {
	// Target is control's address as grpc has it, and Dial how it is reached.
	Target string
	Dial   []grpc.DialOption
	// News is what Flow tells.
	News  *News
	Fleet *fleet.Fleet
	Flow  *flow.Flow
	Meter *metrics.Meter
	Log   *slog.Logger
	// Interval is the least time between two reports of what requests still ask of endpoints; zero
	// means DefaultInterval.
	Interval time.Duration
}

// Client talks with control. Make one with [New], and run it with [Client.Run].
type Client struct {
	Config
	process string
}

// New returns a Client that has said nothing.
func New(c Config) *Client {
	if c.Interval == 0 {
		c.Interval = DefaultInterval
	}
	return &Client{Config: c, process: strconv.FormatUint(rand.Uint64(), 36)}
}

// Run talks with control until ctx ends, for as often as the connection breaks.
func (c *Client) Run(ctx context.Context) error {
	pause := shortest
	silent := false // that control does not answer was logged
	for ctx.Err() == nil {
		complete, err := c.connect(ctx)
		c.Meter.Connected(false)
		if ctx.Err() != nil {
			return nil
		}
		if complete {
			pause, silent = shortest, false
		}
		if !silent {
			c.Log.Warn("cannot reach control; keeping what it last said; retrying", "control", c.Target, "err", err)
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

// connect is one stream, from its beginning to its end. Complete says whether control said all that
// there is.
func (c *Client) connect(ctx context.Context) (complete bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := grpc.NewClient(c.Target, append(c.Dial, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxUpdate)))...)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	stream, err := placement.NewPlacementClient(conn).Connect(ctx)
	if err != nil {
		return false, err
	}
	updates := make(chan *placement.Update)
	ended := make(chan error, 1)
	go func() { // ends with the stream, which ends with ctx
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

	s := &talk{Client: c, stream: stream, hearing: newHearing(), telling: newTelling(), usedAt: time.Now()}
	c.Fleet.TellMade()
	defer c.Fleet.Update(fleet.Later, func(s *endpointstate.State, now time.Time) { // scrapes find the requests of other processes
		s.ForgetPeers(fleet.Steady(now))
	})
	c.Fleet.ForgetQuestions()
	defer c.Fleet.ForgetQuestions()
	if err := s.report(wantedNow | flying | allFlying | backlogs | lessons | question); err != nil {
		return false, err
	}
	tick := time.NewTicker(often)
	defer tick.Stop()
	teach := time.NewTicker(seldom)
	defer teach.Stop()
	var counts <-chan time.Time // when the counts that changed are told
	told := time.Now()          // backlogs
	asked := time.Now()         // the last question
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
			return s.hearing.complete, err
		case <-ctx.Done():
			return s.hearing.complete, ctx.Err()
		case u := <-updates:
			if s.hear(u) {
				what = flying
			}
		case <-c.News.models:
			what, counts = wantedNow, nil
		case <-c.News.counts:
			if counts == nil {
				counts = time.After(soon)
			}
			continue
		case <-counts:
			what, counts = wantedNow, nil
		case <-c.Fleet.Moves():
			moved.Reset(max(0, c.Interval-time.Since(told)))
			continue
		case told = <-moved.C:
			what = backlogs | made
		case <-c.Fleet.Questions():
			asks.Reset(max(0, questionInterval-time.Since(asked)))
			continue
		case asked = <-asks.C:
			what = question
		case <-c.Fleet.Urgent():
			what = flying
		case <-tick.C:
			what = wantedNow | flying | allFlying | used | made
		case <-teach.C:
			what = lessons
		}
		if err := s.report(what); err != nil {
			return s.hearing.complete, err
		}
	}
}

// talk is one stream. It is owned by one goroutine.
type talk struct {
	*Client
	stream  placement.Placement_ConnectClient
	hearing *hearing
	telling *telling
	applied uint64    // the version in force
	began   bool      // something was told
	told    uint64    // the version that control was told of
	usedAt  time.Time // when control was last told of use
	peers   []endpointstate.Backlog
	// question is the last one.
	question uint64
}

// hear puts an Update in force, and says whether there is something to acknowledge.
func (t *talk) hear(u *placement.Update) bool {
	defer t.Fleet.Answered(u.GetAnswer()) // once all is in force
	now := time.Now()
	if told := u.GetBacklogs(); len(told) > 0 {
		steady := fleet.Steady(now)
		t.peers = backlogsOf(told, steady, t.peers[:0])
		t.Fleet.Update(fleet.Later, func(s *endpointstate.State, _ time.Time) { s.SetPeers(t.peers, steady) })
	}
	if told := u.GetLessons(); len(told) > 0 {
		t.Fleet.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) { s.Times.LearnFromPeers(lessonsOf(told), now) })
	}
	t.makers(u.GetResponses())
	if onlyOfOthers(u) {
		if t.hearing.complete && t.told == t.applied { // else there is something to acknowledge
			t.told, t.applied = u.GetVersion(), u.GetVersion()
		}
		return false
	}
	news, ok := t.hearing.hear(u, now)
	if !ok {
		return false
	}
	t.Fleet.ApplyPlacement(news)
	t.applied = u.GetVersion()
	t.Meter.Heard(t.applied, now)
	if news.All {
		t.Meter.Connected(true)
		t.Log.Info("control has sent everything that it knows", "control", t.Target, "endpoints", len(news.Endpoints), "copies",
			len(news.Copies))
	}
	return true
}

// topics are what a report is about.
type topics uint8

const (
	wantedNow topics = 1 << iota
	flying
	allFlying
	used
	backlogs
	lessons
	made
	question
)

// report says what has changed of some topics, if anything has. What is in flight is read after
// what is in force was put there, so that an acknowledgement comes with every request that began
// before it.
func (t *talk) report(what topics) error {
	now := time.Now()
	r := &placement.Report{Process: t.process, Applied: t.applied,
		Leaving: t.telling.leaves(fleet.Read(t.Fleet, func(s *endpointstate.State) map[string]endpointstate.Leaving {
			return s.Leaving(t.Fleet.Now())
		}), now)}
	if what&wantedNow != 0 {
		view := t.Fleet.View()
		r.Wanted = t.telling.wants(t.Flow.Wanted(), view.Unusable, now)
	}
	if what&flying != 0 {
		r.InFlight = t.telling.flies(fleet.Read(t.Fleet, (*endpointstate.State).InFlight), what&allFlying != 0)
		r.Missing = missing(fleet.Read(t.Fleet, (*endpointstate.State).TakeMissing))
	}
	if what&used != 0 {
		r.Usage = usage(fleet.Read(t.Fleet, (*endpointstate.State).Usage), t.Flow.HeldFull(), now.Sub(t.usedAt), fleet.Steady(now))
		t.usedAt = now
	}
	if what&backlogs != 0 {
		r.Backlogs = t.telling.backlogs(t.Fleet.Backlogs, fleet.Steady(now))
	}
	if what&made != 0 {
		r.Responses = t.responses()
	}
	if what&lessons != 0 {
		r.Lessons = t.telling.teaches(fleet.Read(t.Fleet, func(s *endpointstate.State) []endpointstate.LearnedProfile {
			return s.Times.LearnedProfiles(t.Fleet.Now())
		}))
	}
	if what&question != 0 {
		t.question = t.Fleet.Question()
	}
	r.Question = t.question
	if t.began && t.applied == t.told && what&question == 0 && len(r.Lessons)+len(r.Responses)+len(r.Backlogs)+len(r.Wanted)+
		len(r.InFlight)+len(r.Missing)+len(r.Usage)+len(r.Leaving) == 0 {
		return nil
	}
	if !t.began {
		r.Sharing = uint32(fleet.Read(t.Fleet, (*endpointstate.State).Sharing)) //nolint:gosec // a number of processes
	}
	t.began, t.told = true, t.applied
	return t.stream.Send(r)
}
