package placementclient_test

import (
	"slices"
	"testing"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/fleet"
)

// Stored responses and their endpoints are reported to control: earlier responses at the start of a
// stream, and later ones when they are created. Responses of other extprocs, which control sends,
// are used.
func TestStoredResponsesAreShared(t *testing.T) {
	r := newRig(t)
	r.fleet.Made("resp_1", fleet.Maker{Pool: thePool, Address: a})
	s := r.next()
	s.say(complete())
	s.inForce()
	r.fleet.Made("resp_2", fleet.Maker{Pool: thePool, Address: b})
	s.until("both are reported", func() bool {
		return slices.Contains(s.responses, "resp_1@"+a) && slices.Contains(s.responses, "resp_2@"+b)
	})
	s.say(&placement.Update{Responses: []*placement.Responses{{Pool: thePool.String(), Endpoint: b, Ids: []string{"resp_3"}}}})
	r.await("responses of others are known", func() bool {
		m, ok := r.fleet.Maker("resp_3")
		return ok && m == fleet.Maker{Pool: thePool, Address: b}
	})
	r.fleet.Made("resp_3", fleet.Maker{Pool: thePool, Address: b})
	if told := r.fleet.TakeMade(10); len(told) > 0 {
		t.Errorf("responses of others are reported again: %v", told)
	}
}
