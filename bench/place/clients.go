package place

import (
	"cmp"
	"compress/gzip"
	"io"
	"math/rand/v2"
	"slices"

	"github.com/headgate/headgate/bench/traffic"
	"github.com/headgate/headgate/internal/workload"
)

// client is what somebody sends in one window of windowed seconds after the other, and then from the first on.
type client []workload.Window

// windowed is the length of a window, in seconds.
const windowed = workload.ServeGenWindow

// openClients reads those of a file of ServeGen's in a folder.
func openClients(dir, file string) (all []client, err error) {
	err = traffic.Read(dir, file, func(r io.Reader) error {
		text, err := gzip.NewReader(r)
		if err != nil {
			return err
		}
		read, err := workload.ReadServeGen(text)
		for _, c := range read {
			all = append(all, c.Windows)
		}
		return err
	})
	return all, err
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
			sum += is.Rate
		}
	}
	c.times = w.Rate * float64(len(w.Clients[0])) / sum
	return c
}

// window is that of a model, so many windows after the start.
func (c crowd) window(model, number int) workload.Window {
	is := c.clients[model%len(c.clients)]
	w := is[(c.begins[model/len(c.clients)]+number)%len(is)]
	w.Rate *= c.times
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
			if w.Rate == 0 {
				continue
			}
			if left < 0 {
				left = w.Gap(source) * rand.New(source).Float64() //nolint:gosec // no secret
			}
			at := float64(number) * windowed
			for until := min(at+windowed, end); ; left = w.Gap(source) {
				if at+left/w.Rate >= until {
					left -= (until - at) * w.Rate
					break
				}
				at += left / w.Rate
				all = append(all, Request{at, int32(model)}) //nolint:gosec // there are fewer
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return all
}
