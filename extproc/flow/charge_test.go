package flow_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/test/leak"
)

// turnsOf enqueues 60 requests of each of two tenants, with short and with long answers, and
// returns how often each goes in 44 turns. Ended is called with each dispatched request.
func turnsOf(t *testing.T, is func(long bool) flow.Service, ended func(f *flow.Flow, c *flow.Charge, long bool)) (short, long int) {
	f := aFlow(1000, 1000)
	chat, report := of(pools[0], 0, 1, 1), of(pools[0], 0, 2, 1)
	isLong := map[*flow.Ticket]bool{blocked(t, f, chat): false}
	for range 60 {
		isLong[enqueue(t, f, report)], isLong[enqueue(t, f, chat)] = true, false
	}
	f.Freed("10.0.0.1:8000", "")
	for range 44 {
		synctest.Wait()
		for ticket, itsLong := range isLong {
			if len(ticket.Turn()) == 0 {
				continue
			}
			if err := <-ticket.Turn(); err != nil {
				t.Fatal(err)
			}
			c := ticket.Dispatch(is(itsLong), time.Now())
			delete(isLong, ticket)
			if itsLong {
				long++
			} else {
				short++
			}
			ended(f, c, itsLong)
			break
		}
	}
	for ticket := range isLong {
		ticket.Leave()
	}
	return short, long
}

func tokensOf(long bool) int64 {
	if long {
		return 10
	}
	return 1
}

// A tenant whose answers turn out longer than predicted is charged for it: the other tenant then
// goes first, for as many requests as that.
func TestAnswersAreChargedByTheirLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := func(bool) flow.Service { return flow.Service{PerToken: 1, Tokens: 1, InTokens: true} }
		short, long := turnsOf(t, is, func(_ *flow.Flow, c *flow.Charge, long bool) { c.Ended(tokensOf(long), time.Now()) })
		if long < 3 || long > 5 || short < 39 {
			t.Errorf("requests with short answers go %d times, and others %d times; want 10 for 1", short, long)
		}
	})
}

// The same holds if the length of an answer is reported after its end.
func TestAnswersAreChargedByOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := func(bool) flow.Service { return flow.Service{PerToken: 1, Tokens: 1, InTokens: true} }
		number := uint64(0)
		short, long := turnsOf(t, is, func(f *flow.Flow, c *flow.Charge, long bool) {
			number++
			c.Expect(number)
			c.Ended(-1, time.Now())
			f.Answered(number, float64(tokensOf(long)))
		})
		if long < 3 || long > 5 || short < 39 {
			t.Errorf("requests with short answers go %d times, and others %d times; want 10 for 1", short, long)
		}
	})
}

// An outcome settles a charge once, whether it comes before or after the end of its request. If
// none comes, the charge is settled after a while. In each case no map has an entry in the end.
func TestExpectedOutcomesLeaveNothing(t *testing.T) {
	for name, end := range map[string]func(f *flow.Flow, c *flow.Charge, number uint64){
		"before the end": func(f *flow.Flow, c *flow.Charge, number uint64) {
			f.Answered(number, 7)
			c.Ended(-1, time.Now())
		},
		"after the end": func(f *flow.Flow, c *flow.Charge, number uint64) {
			c.Ended(-1, time.Now())
			c.Ended(1, time.Now())
			f.Answered(number, 7)
			f.Answered(number, 8)
		},
		"none": func(_ *flow.Flow, c *flow.Charge, _ uint64) {
			c.Ended(-1, time.Now())
			time.Sleep(11 * time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := aFlow(10, 100)
				before := leak.Maps(f)
				first, second := blocked(t, f, of(pools[0], 0, 1, 1)), enqueue(t, f, of(pools[0], 0, 1, 1))
				f.Freed("10.0.0.1:8000", "")
				for i, ticket := range []*flow.Ticket{first, second} {
					if err := <-ticket.Turn(); err != nil {
						t.Fatal(err)
					}
					number := uint64(i + 1)
					c := ticket.Dispatch(flow.Service{PerToken: 1, Tokens: 1, InTokens: true}, time.Now())
					ticket.Leave()
					c.Expect(number)
					end(f, c, number)
				}
				synctest.Wait()
				for path, n := range leak.Maps(f) {
					if n != before[path] {
						t.Errorf("%s has %d entries, want %d", path, n, before[path])
					}
				}
			})
		})
	}
}

// The expected lengths of answers are charged at the dispatch, so they count while the answers run.
func TestExpectedLengthsAreChargedAtDispatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running []*flow.Charge
		is := func(long bool) flow.Service {
			return flow.Service{PerToken: 1, Tokens: float64(tokensOf(long)), InTokens: true}
		}
		short, long := turnsOf(t, is, func(_ *flow.Flow, c *flow.Charge, _ bool) { running = append(running, c) })
		if long < 3 || long > 5 || short < 39 {
			t.Errorf("requests with short answers go %d times, and others %d times; want 10 for 1", short, long)
		}
		for _, c := range running {
			c.Ended(-1, time.Now())
		}
	})
}
