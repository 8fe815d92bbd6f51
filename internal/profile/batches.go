package profile

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"sigs.k8s.io/yaml"
)

// Batches is the latency profile of one model on one kind of hardware, by batch size. It is for
// models that generate no tokens. All times are in seconds. A Batches is immutable after its
// creation, and safe for concurrent use.
type Batches struct {
	// Name describes the model and the hardware in messages.
	Name string `json:"name"`
	// Source says where the figures come from, such as a measurement, a paper, or a fit with its
	// error.
	Source string `json:"source,omitempty"`
	// Model is the model's name in capacity plans; "" if unknown.
	Model string `json:"model,omitempty"`
	// Hardware is the kind of hardware, such as a100.
	Hardware string `json:"hardware,omitempty"`
	// Price is the price of one replica per hour, in any currency; 0 if unknown.
	Price float64 `json:"price,omitempty"`
	// Batches has the times of some batch sizes, in ascending order of size. The first size is 1.
	Batches []Batch `json:"batches"`

	curves []curve // one for each entry of Batches
}

// Batch is the service time of batches of one size.
type Batch struct {
	Size int `json:"size"` // number of requests in the batch
	// Mean is the mean service time in seconds.
	Mean float64 `json:"mean"`
	// Quantiles are quantiles of the service time, sorted by share. Without quantiles the time is
	// constant. Times between two quantiles are interpolated linearly. Below the first and above
	// the last quantile, the time is that of the nearest quantile.
	Quantiles []Quantile `json:"quantiles,omitempty"`
}

// Quantile is a quantile of the service time: the given share of batches takes at most Seconds.
type Quantile struct {
	Share   float64 `json:"share"` // from 0 to 1
	Seconds float64 `json:"seconds"`
}

// ParseBatches parses a batch profile from YAML. If a value is invalid, the error names its field.
func ParseBatches(text []byte) (*Batches, error) {
	b := new(Batches)
	if err := yaml.UnmarshalStrict(text, b); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	var faults []error
	for _, f := range b.Faults() {
		faults = append(faults, f)
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("profile %q: %w", b.Name, errors.Join(faults...))
	}
	return b.Ready(), nil
}

// NewBatches returns a profile of valid batches that is ready for use.
func NewBatches(name string, batches ...Batch) *Batches {
	return (&Batches{Name: name, Batches: batches}).Ready()
}

// Times returns a copy of the profile in which all times are multiplied by factor. The copy is
// ready for use.
func (b *Batches) Times(factor float64) *Batches {
	slower := *b
	slower.Batches = slices.Clone(b.Batches)
	for i := range slower.Batches {
		is := &slower.Batches[i]
		is.Mean *= factor
		is.Quantiles = slices.Clone(is.Quantiles)
		for j := range is.Quantiles {
			is.Quantiles[j].Seconds *= factor
		}
	}
	return slower.Ready()
}

// Faults returns all invalid fields of the profile.
func (b *Batches) Faults() (faults []Fault) {
	wrong := func(value any, words, field string, args ...any) {
		faults = append(faults, Fault{fmt.Sprintf(field, args...), value, words})
	}
	if !(b.Price >= 0) || math.IsInf(b.Price, 0) {
		wrong(b.Price, "a price is finite and not negative", "price")
	}
	if len(b.Batches) == 0 || b.Batches[0].Size != 1 {
		wrong(len(b.Batches), "want the latency of a batch of 1 first, then of larger ones", "batches")
	}
	for i, is := range b.Batches {
		if i > 0 && is.Size <= b.Batches[i-1].Size {
			wrong(is.Size, "sizes are in order, each once", "batches[%d].size", i)
		}
		if !(is.Mean > 0) || math.IsInf(is.Mean, 0) {
			wrong(is.Mean, "a batch takes some time", "batches[%d].mean", i)
		}
		for j, q := range is.Quantiles {
			switch {
			case !(q.Share >= 0 && q.Share <= 1):
				wrong(q.Share, "a share is 0 to 1, such as 0.99", "batches[%d].quantiles[%d].share", i, j)
			case j > 0 && q.Share <= is.Quantiles[j-1].Share:
				wrong(q.Share, "shares are in order, each once", "batches[%d].quantiles[%d].share", i, j)
			case !(q.Seconds > 0) || math.IsInf(q.Seconds, 0):
				wrong(q.Seconds, "a batch takes some time", "batches[%d].quantiles[%d].seconds", i, j)
			case j > 0 && q.Seconds < is.Quantiles[j-1].Seconds:
				wrong(q.Seconds, "a larger share takes no less time", "batches[%d].quantiles[%d].seconds", i, j)
			}
		}
	}
	return faults
}

// curve is the quantile function of a batch's service time, scaled so that its mean is the batch's
// mean.
type curve struct {
	mean      float64
	quantiles []Quantile
}

// Ready prepares a valid profile for use, and returns that profile.
func (b *Batches) Ready() *Batches {
	b.curves = nil
	for _, is := range b.Batches {
		c := curve{is.Mean, slices.Clone(is.Quantiles)}
		if len(c.quantiles) > 0 {
			scale := is.Mean / meanOf(c.quantiles)
			for i := range c.quantiles {
				c.quantiles[i].Seconds *= scale
			}
		}
		b.curves = append(b.curves, c)
	}
	return b
}

// meanOf returns the mean of a distribution that has these quantiles.
func meanOf(all []Quantile) float64 {
	last := all[len(all)-1]
	mean := all[0].Share*all[0].Seconds + (1-last.Share)*last.Seconds
	for i := 1; i < len(all); i++ {
		mean += (all[i].Share - all[i-1].Share) * (all[i].Seconds + all[i-1].Seconds) / 2
	}
	return mean
}

// at returns the quantile for a share: that share of batches takes at most this time.
func (c *curve) at(share float64) float64 {
	all := c.quantiles
	if len(all) == 0 {
		return c.mean
	}
	i := sort.Search(len(all), func(i int) bool { return all[i].Share >= share })
	switch i {
	case 0:
		return all[0].Seconds
	case len(all):
		return all[i-1].Seconds
	}
	return between(share, all[i-1].Share, all[i].Share, all[i-1].Seconds, all[i].Seconds)
}

// between returns y at x on the line through (x0, y0) and (x1, y1).
func between(x, x0, x1, y0, y1 float64) float64 { return y0 + (y1-y0)*(x-x0)/(x1-x0) }

// MaxBatch returns the largest batch size in the profile.
func (b *Batches) MaxBatch() int { return b.Batches[len(b.Batches)-1].Size }

// MeanTime returns the mean service time of batches of a size from 1 to [Batches.MaxBatch]. It
// interpolates linearly between measured sizes.
func (b *Batches) MeanTime(size int) float64 {
	return b.by(size, func(c *curve) float64 { return c.mean })
}

// Time returns a quantile of the service time of batches of a size: the given share of batches
// takes at most this time. With a uniformly random share, it draws a random service time. It does
// not allocate.
func (b *Batches) Time(size int, share float64) float64 {
	return b.by(size, func(c *curve) float64 { return c.at(share) })
}

func (b *Batches) by(size int, of func(*curve) float64) float64 {
	i := sort.Search(len(b.Batches), func(i int) bool { return b.Batches[i].Size >= size })
	switch {
	case i == len(b.Batches):
		return of(&b.curves[i-1])
	case b.Batches[i].Size == size || i == 0:
		return of(&b.curves[i])
	}
	return between(float64(size), float64(b.Batches[i-1].Size), float64(b.Batches[i].Size), of(&b.curves[i-1]), of(&b.curves[i]))
}

// Throughput returns how many requests per second one replica serves in batches of a size (μ in
// InferLine).
func (b *Batches) Throughput(size int) float64 { return float64(size) / b.MeanTime(size) }

// Fixed reports whether batches of the same size always take the same time.
func (b *Batches) Fixed() bool {
	return !slices.ContainsFunc(b.Batches, func(is Batch) bool { return len(is.Quantiles) > 0 })
}
