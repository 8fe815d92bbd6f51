package place

import (
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/headgate/headgate/bench/traffic"
)

// client is what somebody sends in one window of windowed seconds after the other, and then from the first on.
type client []window

// windowed is the length of a window, in seconds.
const windowed = 600

// window is a rate, in requests a second, and how requests come at it.
type window struct {
	rate float64
	// shape is that of the times between two requests, which are of a Weibull distribution or else of a gamma distribution.
	shape   float64
	weibull bool
}

// gap draws the time between two requests, by its mean.
func (w window) gap(source rand.Source) float64 {
	if w.weibull {
		return distuv.Weibull{K: w.shape, Lambda: 1 / math.Gamma(1+1/w.shape), Src: source}.Rand()
	}
	return distuv.Gamma{Alpha: w.shape, Beta: w.shape, Src: source}.Rand()
}

// openClients reads those of a file in a folder.
func openClients(dir, file string) (all []client, err error) {
	err = traffic.Read(dir, file, func(r io.Reader) error {
		text, err := gzip.NewReader(r)
		if err == nil {
			all, err = readClients(text)
		}
		return err
	})
	return all, err
}

// readClients reads rows of ServeGen's: client, start of the window in seconds, rate, coefficient of variation, family, and its two
// parameters, of which the second says what the rate does. All clients have as many windows.
func readClients(r io.Reader) (all []client, err error) {
	rows := csv.NewReader(r)
	rows.FieldsPerRecord = 7
	number := make(map[string]int)
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		start, startErr := strconv.ParseFloat(row[1], 64)
		rate, rateErr := strconv.ParseFloat(row[2], 64)
		shape, shapeErr := strconv.ParseFloat(row[5], 64)
		n, ok := number[row[0]]
		if !ok {
			n = len(all)
			number[row[0]], all = n, append(all, nil)
		}
		err = errors.Join(startErr, rateErr, shapeErr)
		switch {
		case err != nil:
		case start != float64(len(all[n])*windowed):
			err = fmt.Errorf("a window begins at %g s, want %d", start, len(all[n])*windowed)
		case !(rate >= 0) || rate > 0 && !(shape > 0):
			err = fmt.Errorf("a rate of %g with the shape %g", rate, shape)
		}
		if err != nil {
			line, _ := rows.FieldPos(0)
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		all[n] = append(all[n], window{rate, shape, row[4] == "Weibull"})
	}
	sum := 0.0
	for _, c := range all {
		if len(c) != len(all[0]) {
			return nil, fmt.Errorf("a client has %d windows, and the first %d", len(c), len(all[0]))
		}
		for _, w := range c {
			sum += w.rate
		}
	}
	if sum == 0 {
		return nil, errors.New("no client sends anything")
	}
	return all, nil
}

// crowd has clients be models: each client is one, and again one for each further round of them. Those of a round begin together, at a window
// by lot, so that what they have in common stays.
type crowd struct {
	clients []client
	begins  []int   // window, by round
	times   float64 // as many requests as the clients send
}

// crowd draws when rounds of clients begin. The rates of all models have a mean over all windows, which is Rate.
func (w World) crowd(seed uint64) crowd {
	random := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // no secret
	c := crowd{clients: w.Clients}
	for at := 0; at < w.Models; at += len(w.Clients) {
		c.begins = append(c.begins, random.IntN(len(w.Clients[0])))
	}
	sum := 0.0
	for model := range w.Models {
		for _, is := range w.Clients[model%len(w.Clients)] {
			sum += is.rate
		}
	}
	c.times = w.Rate * float64(len(w.Clients[0])) / sum
	return c
}

// window is that of a model, so many windows after the start.
func (c crowd) window(model, number int) window {
	is := c.clients[model%len(c.clients)]
	w := is[(c.begins[model/len(c.clients)]+number)%len(is)]
	w.rate *= c.times
	return w
}

// requests draws those of all models until a time. Each model's come as a renewal process at the rate of each window: the time from one to
// the next is by the shape of the window of the former, and passes as fast as the rates of the windows say, so that means are the rates,
// whatever the shapes.
func (c crowd) requests(models int, seed uint64, end float64) (all []Request) {
	for model := range models {
		source := rand.NewPCG(seed, 1<<32+uint64(model)) //nolint:gosec // no secret
		left := -1.0                                     // until the next request, by the mean; below 0 where none was drawn
		for number := 0; float64(number)*windowed < end; number++ {
			w := c.window(model, number)
			if w.rate == 0 {
				continue
			}
			if left < 0 {
				left = w.gap(source) * rand.New(source).Float64() //nolint:gosec // no secret
			}
			at := float64(number) * windowed
			for until := min(at+windowed, end); ; left = w.gap(source) {
				if at+left/w.rate >= until {
					left -= (until - at) * w.rate
					break
				}
				at += left / w.rate
				all = append(all, Request{at, int32(model)}) //nolint:gosec // there are fewer
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return all
}
