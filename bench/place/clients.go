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

// client has the statistics of a client in consecutive windows, which repeat.
type client []workload.Window

// windowed is the length of a window in seconds.
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

// population maps models to clients: each client is a model, and again one in each further round.
// The clients of a round start together at a random window, which preserves their correlation.
type population struct {
	clients []client
	begins  []int   // by round: the first window
	times   float64 // factor on the request rate
}

// population draws the start of each round. The mean rate of all models over all windows is Rate.
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

// window returns a window of a model, counted from the start.
func (c population) window(model, number int) workload.Window {
	is := c.clients[model%len(c.clients)]
	w := is[(c.begins[model/len(c.clients)]+number)%len(is)]
	w.Rate *= c.times
	return w
}

// requests draws the requests of all models until a time. Each model is a renewal process: the
// shape of a gap is that of the window where it starts, and it passes at the rate of each window.
// So mean rates are those of the windows, whatever the shapes.
func (c population) requests(models int, seed uint64, end float64) (all []Request) {
	for model := range models {
		source := rand.NewPCG(seed, 1<<32+uint64(model)) //nolint:gosec // no secret
		left := -1.0                                     // remaining gap in units of the mean; below 0 if none was drawn
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
