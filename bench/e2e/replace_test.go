package e2e

import (
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/rig"
)

// An extproc that is asked to stop leaves its streams to Envoy, whether it waits for their end or not, and the next takes
// its place at the same socket.
func TestExtprocIsReplacedAndNoStreamNoticesIt(t *testing.T) {
	t.Parallel()
	const open = 32
	const patience = 20 * time.Second
	for name, c := range map[string]struct {
		tokens int
		flags  []string
	}{
		"streams end before the drain timeout":   {40, []string{"--drain-timeout", patience.String()}},
		"the drain timeout is before their ends": {120, []string{"--drain-timeout", "1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// At the pace of a large model: 45 ms a token.
			s := start(t, extprocFlags(c.flags...), func(c *rig.Config) { c.EngineFlags = []string{"--max-loras", "4"} })
			ends := s.streams(open, c.tokens)
			asked := time.Now()
			s.Extproc.Signal(syscall.SIGTERM)
			// What was on its way is answered still.
			s.promised(time.Second, "new requests get 503", func() bool { return s.must(completion("a01", 1, false)).status == 503 })
			for draining := true; draining; {
				select {
				case <-s.Extproc.Done():
					draining = false
				case <-time.After(50 * time.Millisecond):
				}
				begun := time.Now()
				a := s.must(completion("a01", 1, false))
				refused(t, "a request meanwhile", a, 503, "no_endpoint")
				if took := time.Since(begun); took > time.Second {
					t.Errorf("503 after %v", took)
				}
			}
			stopped := time.Now()
			if took := stopped.Sub(asked); took >= patience {
				t.Errorf("it ended after %v, and not when it had nothing to wait for", took)
			}
			if err := s.StartExtproc(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.promised(time.Second, "requests are answered again", func() bool { return s.must(completion("a01", 1, false)).status == 200 })
			t.Logf("it ended %v after it was asked, with %d streams not at their end; requests were answered %v after that",
				stopped.Sub(asked).Round(time.Millisecond), open-len(ends), time.Since(stopped).Round(time.Millisecond))
			for range open {
				if err := <-ends; err != nil {
					t.Errorf("a stream did not survive: %v", err)
				}
			}
			s.promised(time.Second, "nothing is in flight", func() bool { return s.inFlight() == 0 })
		})
	}
}
