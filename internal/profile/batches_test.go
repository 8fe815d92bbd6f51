package profile_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/profile"
)

const byBatch = `
name: resnet on a T4
source: made up
hardware: t4
price: 0.5
batches:
- {size: 1, mean: 0.01}
- {size: 4, mean: 0.016, quantiles: [{share: 0.5, seconds: 0.01}, {share: 0.9, seconds: 0.02}, {share: 1, seconds: 0.06}]}
- {size: 8, mean: 0.02}
`

func TestTimesByBatch(t *testing.T) {
	b, err := profile.ParseBatches([]byte(byBatch))
	if err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int]float64{1: 0.01, 2: 0.012, 3: 0.014, 4: 0.016, 6: 0.018, 8: 0.02} {
		if got := b.MeanTime(size); math.Abs(got-want) > 1e-12 {
			t.Errorf("a batch of %d takes %v, want %v", size, got, want)
		}
	}
	if got := b.Throughput(4); math.Abs(got-250) > 1e-9 || b.MaxBatch() != 8 || b.Fixed() || b.Price != 0.5 || b.Hardware != "t4" {
		t.Errorf("the throughput is %v; %+v", got, b)
	}
	// Times drawn with uniform shares have the profile's mean, and their quantiles have the
	// profile's ratios.
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test's
	for _, size := range []int{1, 2, 4, 6} {
		sum := 0.0
		for range 1_000_000 {
			sum += b.Time(size, random.Float64())
		}
		if got, want := sum/1e6, b.MeanTime(size); math.Abs(got/want-1) > 0.005 {
			t.Errorf("batches of %d take %v, want %v", size, got, want)
		}
	}
	if lower, upper := b.Time(4, 0.2), b.Time(4, 0.9); lower != b.Time(4, 0.5) || math.Abs(upper/lower-2) > 1e-9 ||
		math.Abs(b.Time(4, 0.7)/lower-1.5) > 1e-9 || math.Abs(b.Time(4, 1)/lower-6) > 1e-9 {
		t.Errorf("a fifth of batches of 4 takes at most %v, 9 in 10 %v", lower, upper)
	}
	if b.Time(8, 0.1) != 0.02 || b.Time(8, 0.9) != 0.02 {
		t.Error("a batch of 8 does not always take as long")
	}
	slower := b.Times(1.5)
	for _, size := range []int{1, 3, 4, 6} {
		for _, share := range []float64{0, 0.7, 0.95, 1} {
			if got, want := slower.Time(size, share), 1.5*b.Time(size, share); math.Abs(got/want-1) > 1e-12 {
				t.Errorf("of a model that takes 1.5 times as long, batches of %d take %v, want %v", size, got, want)
			}
		}
	}
	if slower.Hardware != "t4" || slower.Price != 0.5 || b.Batches[1].Quantiles[0].Seconds != 0.01 || b.MeanTime(4) != 0.016 {
		t.Errorf("it is %+v, and what it was made of %+v", slower, b)
	}
	if !profile.NewBatches("x", profile.Batch{Size: 1, Mean: 1}).Fixed() {
		t.Error("a profile without quantiles is not fixed")
	}
}

// The quantiles of a batch are scaled: they keep their ratios, and their mean becomes that of the
// batch. If the last share is below 1, all larger shares take as long as the last one.
func TestMeanIncludesTheLastShare(t *testing.T) {
	b := profile.NewBatches("x", profile.Batch{
		Size: 1, Mean: 0.13,
		Quantiles: []profile.Quantile{{Share: 0.5, Seconds: 1}, {Share: 0.9, Seconds: 2}},
	})
	// The unscaled quantiles have the mean 0.5 * 1 + 0.4 * 1.5 + 0.1 * 2 = 1.3. The batch has a
	// tenth of that, so all quantiles are divided by ten.
	for share, want := range map[float64]float64{0.1: 0.1, 0.5: 0.1, 0.7: 0.15, 0.9: 0.2, 0.95: 0.2, 1: 0.2} {
		if got := b.Time(1, share); math.Abs(got-want) > 1e-12 {
			t.Errorf("share %v takes %v s, want %v", share, got, want)
		}
	}
}

func TestErrorsOfProfilesByBatch(t *testing.T) {
	for change, want := range map[string]string{
		"price: 0.5 -> price: -1":                             "price is -1: a price is finite and not negative",
		"size: 1, -> size: 2,":                                "batches is 3: want the latency of a batch of 1 first, then of larger ones",
		"size: 8 -> size: 4":                                  "batches[2].size is 4: sizes are in order, each once",
		"mean: 0.01} -> mean: 0}":                             "batches[0].mean is 0: a batch takes some time",
		"mean: 0.01} -> mean: -.inf}":                         "profile: ",
		"share: 0.5 -> share: -0.5":                           "batches[1].quantiles[0].share is -0.5: a share is 0 to 1, such as 0.99",
		"share: 0.9 -> share: 0.5":                            "batches[1].quantiles[1].share is 0.5: shares are in order, each once",
		"share: 1, -> share: 1.5,":                            "batches[1].quantiles[2].share is 1.5: a share is 0 to 1, such as 0.99",
		"seconds: 0.02 -> seconds: 0.001":                     "batches[1].quantiles[1].seconds is 0.001: a larger share takes no less time",
		"{share: 0.5, seconds: 0.01 -> {share: 0, seconds: 0": "batches[1].quantiles[0].seconds is 0: a batch takes some time",
		"hardware: -> hard:":                                  "unknown field",
	} {
		from, to, _ := strings.Cut(change, " -> ")
		if _, err := profile.ParseBatches([]byte(strings.Replace(byBatch, from, to, 1))); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", change, err, want)
		}
	}
	if _, err := profile.ParseBatches([]byte("name: x")); err == nil ||
		!strings.Contains(err.Error(), "want the latency of a batch of 1 first") {
		t.Errorf("of a profile without batches: %v", err)
	}
}
