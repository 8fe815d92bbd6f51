package lending_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headgate/headgate/control/place/lending"
)

func TestDivide(t *testing.T) {
	of := func(wants ...int64) (all []lending.Claim) {
		for _, n := range wants {
			all = append(all, lending.Claim{Want: n, Unit: 1})
		}
		return all
	}
	for _, c := range []struct {
		name   string
		all    int64
		claims []lending.Claim
		turn   int
		want   []int64
	}{
		{"enough for all", 10, of(3, 0, 4), 0, []int64{3, 0, 4}},
		{"one has the demand", 10, of(0, 30, 0), 0, []int64{0, 10, 0}},
		{"equal parts", 9, of(20, 20, 20), 0, []int64{3, 3, 3}},
		{"what one leaves goes to the others", 9, of(20, 1, 20), 0, []int64{3, 1, 5}},
		{"one unit, in turn", 1, of(5, 5, 5), 0, []int64{1, 0, 0}},
		{"one unit, the next turn", 1, of(5, 5, 5), 1, []int64{0, 1, 0}},
		{"one unit, the last turn", 1, of(5, 5, 5), 5, []int64{0, 0, 1}},
		{"large requests, in turn", 9000, []lending.Claim{{12000, 6000}, {12000, 6000}}, 0, []int64{6000, 3000}},
		{"nothing left", -3, of(5, 5), 0, []int64{0, 0}},
		{"negative wants", 5, of(-1, 2), 0, []int64{0, 2}},
		{"nobody", 5, nil, 3, []int64{}},
	} {
		if got := lending.Divide(c.all, c.claims, c.turn); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// Parts never add up to more than all or are above what is wanted, and nothing is left that anybody
// wants. Over all turns, everybody who wants something gets something.
func TestDivideNeverExceeds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		all := random.Int64N(30)
		claims := make([]lending.Claim, 1+random.IntN(6))
		wanted := int64(0)
		for i := range claims {
			claims[i] = lending.Claim{Want: random.Int64N(20), Unit: 1 + random.Int64N(8)}
			wanted += claims[i].Want
		}
		got := make([]bool, len(claims))
		for turn := range claims {
			sum := int64(0)
			for i, n := range lending.Divide(all, claims, turn) {
				if n < 0 || n > claims[i].Want {
					t.Fatalf("%d of %+v: %d at %d", all, claims, n, i)
				}
				got[i] = got[i] || n >= min(all, claims[i].Unit, claims[i].Want)
				sum += n
			}
			if sum != min(all, wanted) {
				t.Fatalf("%d of %+v: the parts are %d together", all, claims, sum)
			}
		}
		if slices.Contains(got, false) {
			t.Fatalf("%d of %+v: in no turn each gets what a request needs", all, claims)
		}
	}
}
