package placementclient

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// DefaultLost is the default of Config.Lost. Control starts, or another one is elected, within
	// that time.
	DefaultLost = 10 * time.Second
	// MinLost is the minimum of Config.Lost: control is asked for a sign of life once a second.
	MinLost = 3 * time.Second
)

// silence detects that control sends nothing: it is dead, cannot be reached, or hangs. A process
// that hangs keeps its connections, and keepalives find that only after 15 s.
type silence struct {
	synced atomic.Bool // whether control has sent its complete state on the current stream

	mu    sync.Mutex // guards the fields below
	timer *time.Timer
	since time.Time // time of the last message
	lost  bool
}

// watch starts to measure control's silence. The function that it returns ends that.
func (c *Client) watch() (stop func()) {
	s := &c.silence
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Now()
	s.timer = time.AfterFunc(c.Lost, c.lose)
	return func() { s.timer.Stop() }
}

// lose lets requests that need a load fail, because control has been silent for too long.
func (c *Client) lose() {
	s := &c.silence
	s.mu.Lock()
	defer s.mu.Unlock()
	if silent := time.Since(s.since); silent < c.Lost { // a message came while the timer fired
		s.timer.Reset(c.Lost - silent)
		return
	}
	s.lost = true
	c.Meter.Connected(false)
	c.Log.Warn("control is silent: requests that need a load get 503 control_unavailable", "control", c.Target,
		"for", c.Lost.String())
	c.Flow.ControlLost(true)
}

// heard records a message of control.
func (c *Client) heard() {
	s := &c.silence
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.lost {
		s.lost = false
		s.timer.Reset(c.Lost)
		c.Meter.Connected(s.synced.Load())
		c.Log.Info("control answers again", "control", c.Target, "after", now.Sub(s.since).Round(time.Millisecond).String())
		c.Flow.ControlLost(false)
	}
	s.since = now // the timer is not moved; when it fires, lose waits for the rest
}

// probe asks control for a sign of life, unless one has just come. An old control answers no
// questions: with it, only a broken connection counts as silence.
func (c *Client) probe(complete bool) {
	c.silence.mu.Lock()
	quiet := time.Since(c.silence.since)
	c.silence.mu.Unlock()
	switch {
	case quiet < often/2:
	case c.Fleet.Answers():
		if _, done, ok := c.Fleet.AskControl(); ok {
			done()
		}
	case complete:
		c.heard()
	}
}
