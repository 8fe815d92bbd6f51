package flow_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/extproc/flow"
)

// mixed is a pool in which requests of tenant 1 have predicted times, and those of tenant 2 have
// none, because they go to a new engine.
type mixed struct {
	tickets map[uint64][]*flow.Ticket
	all     []*flow.Ticket
}

func aMixed(t *testing.T, requests int) *mixed {
	f, m := aFlow(100, 1000), &mixed{tickets: make(map[uint64][]*flow.Ticket)}
	for i := range requests {
		tenant := uint64(i%2 + 1)
		ticket := enqueue(t, f, of(pools[0], 0, tenant, 1))
		m.tickets[tenant], m.all = append(m.tickets[tenant], ticket), append(m.all, ticket)
	}
	return m
}

// next dispatches the request that is called, with the service of its tenant. All prompts have 1000
// tokens and all answers 100.
func (m *mixed) next(t *testing.T) (tenant uint64, c *flow.Charge) {
	t.Helper()
	for tenant, waiting := range m.tickets {
		if len(waiting) == 0 || len(waiting[0].Turn()) == 0 {
			continue
		}
		if err := <-waiting[0].Turn(); err != nil {
			t.Fatal(err)
		}
		m.tickets[tenant] = waiting[1:]
		is := flow.Service{InTokens: true, Fixed: 1000, PerToken: flow.Generated, Tokens: 100}
		if tenant == 1 {
			is = flow.Service{Prompt: 1000, Fixed: 0.1, PerToken: 0.002, Tokens: 100, Step: time.Millisecond}
		}
		return tenant, waiting[0].Dispatch(is, time.Now())
	}
	t.Fatal("no request is called")
	return 0, nil
}

func (m *mixed) end() {
	for _, ticket := range m.all {
		ticket.Leave()
	}
}

// Requests with and without predicted times are charged in one unit, so the tenants take turns,
// before and after requests have ended.
func TestRequestsWithAndWithoutPredictionTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := aMixed(t, 40)
		var charges []*flow.Charge
		ahead := 0 // requests of the first tenant minus those of the second
		for i := range 36 {
			tenant, c := m.next(t)
			if charges = append(charges, c); i >= 10 { // 10 run at once
				charges[i-10].Ended(100, time.Now())
			}
			if ahead++; tenant == 2 {
				ahead -= 2
			}
			if ahead < -1 || ahead > 1 {
				t.Fatalf("after %d requests one tenant is ahead by %d", i+1, ahead)
			}
		}
		for _, c := range charges {
			c.Ended(100, time.Now())
		}
		m.end()
	})
}

// A request that runs for longer than predicted is charged for it meanwhile, in the same unit.
// After 5 s it has 5,000 tokens, so that it is charged 10.1 s, as much as 33 other requests.
func TestLongRequestsAreChargedInOneUnit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := aMixed(t, 40)
		var charges []*flow.Charge
		for range 2 {
			_, c := m.next(t)
			charges = append(charges, c)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		counts := map[uint64]int{}
		for range 15 {
			tenant, c := m.next(t)
			counts[tenant]++
			charges = append(charges, c)
		}
		if counts[1] > 1 || counts[2] < 14 { // one was called before
			t.Errorf("the tenants go %v times", counts)
		}
		for _, c := range charges {
			c.Ended(100, time.Now())
		}
		m.end()
	})
}
