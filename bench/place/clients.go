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

// client has the request statistics of one client in consecutive windows. After the last window the
// first follows again.
type client []workload.Window

// windowed is the length of each window in seconds.
const windowed = workload.ServeGenWindow

// openClients reads the clients of a ServeGen file.
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

// population maps models to clients. If there are more models than clients, further rounds of
// models use the same clients. All clients of a round start at the same random window, which
// preserves their correlation.
type population struct {
	clients []client
	begins  []int   // by round: number of the first window
	times   float64 // factor on all request rates
}

// population draws the first window of each round, and scales rates so that all models together
// have the mean rate w.Rate.
func (w World) population(seed uint64) population {
	random := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // no secret
	c := population{clients: w.Clients}
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

// window returns the window of a model that is number windows after its first.
func (c population) window(model, number int) workload.Window {
	is := c.clients[model%len(c.clients)]
	w := is[(c.begins[model/len(c.clients)]+number)%len(is)]
	w.Rate *= c.times
	return w
}

// requests draws the requests of all models until end. Each model is a renewal process. The window
// in which a gap starts decides the shape of the gap; the rate of each later window decides how
// fast the gap passes. So mean rates are those of the windows, whatever the shapes.
func (c population) requests(models int, seed uint64, end float64) (all []Request) {
	for model := range models {
		source := rand.NewPCG(seed, 1<<32+uint64(model)) //nolint:gosec // no secret
		left := -1.0                                     // rest of the gap in units of the mean gap; below 0 if none was drawn
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
