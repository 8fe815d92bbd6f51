package queue

import "testing"

// A tenant has filled an engine before another one comes. Then both have a backlog. The other one
// gets at least half of the places that become free at once, and half of the engine as soon as the
// answers that ran have ended. It makes no difference whether those requests were sent while nobody
// waited, so that they were not charged, or waited alone: a newcomer starts level in both cases.
func TestRequestsThatRanBeforeOthersCame(t *testing.T) {
	const places, answer, tick = 600, 60, 0.1 // the last two in seconds
	type running struct {
		tenant  int
		ends    float64
		account *Account[int]
	}
	for name, waited := range map[string]bool{"sent while nobody waited": false, "waited alone": true} {
		t.Run(name, func(t *testing.T) {
			q := New[int]()
			join := func(tenant int) *Place[int] {
				return q.Join(tenant, Request{Path: Path{Tenant: uint64(tenant + 1)}, Model: "m", Service: answer})
			}
			var all []running
			for i := range places {
				r := running{ends: answer * float64(i+1) / places}
				if waited {
					r.account = q.Dispatch(join(0))
				}
				all = append(all, r)
			}
			for range 2 * places {
				join(0)
				join(1)
			}
			var minutes [4][2]float64 // service by minute and tenant
			var begun [2]int
			for step := range len(minutes) * 600 {
				now := float64(step) * tick
				for i := range all {
					r := &all[i]
					minutes[step/600][r.tenant] += tick
					if r.ends > now {
						continue
					}
					r.account.Settle(answer)
					next := q.Next()
					*r = running{next.Waiter, now + answer, q.Dispatch(next)}
					join(r.tenant)
					if begun[r.tenant]++; begun[1] < begun[0]-1 {
						t.Fatalf("after %.1f s the tenants have begun %v requests", now, begun)
					}
				}
			}
			for i, m := range minutes {
				jain := (m[0] + m[1]) * (m[0] + m[1]) / (2 * (m[0]*m[0] + m[1]*m[1]))
				t.Logf("minute %d: %.0f and %.0f s of service, index %.3f", i+1, m[0], m[1], jain)
				if i > 0 && jain < 0.98 {
					t.Errorf("in minute %d the index is %.3f", i+1, jain)
				}
			}
		})
	}
}
