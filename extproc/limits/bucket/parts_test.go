package bucket_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/limits/bucket"
)

// While processes come and go, and hear of that with delays of up to a second, their parts never
// overlap. After each has heard of the last change, they are the whole.
func TestPartsNeverOverlap(t *testing.T) {
	type message struct {
		at   time.Duration
		part bucket.Part
	}
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		parts, inbox, heard := map[int]*bucket.Parts{}, map[int][]message{}, map[int]time.Duration{}
		var names []int
		now, change := time.Duration(0), time.Duration(0)
		for step := range 4000 {
			if now >= change && step < 3000 {
				change = now + time.Duration(random.Int64N(int64(2*time.Second)))
				if name := random.IntN(5); parts[name] == nil {
					parts[name] = new(bucket.Parts)
					names = append(names, name)
				} else { // it ends
					delete(parts, name)
					delete(inbox, name)
					names = slices.DeleteFunc(names, func(n int) bool { return n == name })
				}
				slices.Sort(names)
				for i, name := range names {
					heard[name] = max(heard[name], now+time.Duration(random.Int64N(int64(bucket.Settled)))) // in order
					inbox[name] = append(inbox[name], message{heard[name], bucket.Equal(i, len(names))})
				}
			}
			now += 5 * time.Millisecond
			var all []bucket.Part
			for name, p := range parts {
				for len(inbox[name]) > 0 && inbox[name][0].at <= now {
					p.Hear(inbox[name][0].part, inbox[name][0].at)
					inbox[name] = inbox[name][1:]
				}
				all = append(all, p.At(now))
			}
			slices.SortFunc(all, func(a, b bucket.Part) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
			end, sum := 0.0, 0.0
			for _, p := range all {
				if p.To > p.From {
					if p.From < end {
						t.Fatalf("seed %d: at %v parts overlap: %v", seed, now, all)
					}
					end, sum = p.To, sum+p.To-p.From
				}
			}
			if step == 3999 && len(all) > 0 && sum < 0.999 {
				t.Errorf("seed %d: in the end the parts are %v", seed, all)
			}
		}
	}
}
