package place

import (
	"bytes"
	"compress/gzip"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/workload"
	"github.com/headgate/headgate/test/race"
)

// Each client sends requests at the rates of its windows, whatever the shape of its gaps.
func TestClientsSendTheirRates(t *testing.T) {
	race.Skip(t)
	var all []client
	for _, w := range []workload.Window{
		{Rate: 20, Shape: 1},
		{Rate: 10, Shape: 0.2},
		{Rate: 10, Shape: 0.4, Weibull: true},
		{Rate: 5, Shape: 3},
	} {
		all = append(all, client{w, {}, w, {Rate: w.Rate / 2, Shape: w.Shape, Weibull: w.Weibull}})
	}
	w := World{Models: len(all), Clients: all, Rate: 45 * 2.5 / 4}
	end := 400.0 * windowed
	c := w.population(1)
	is := make([]map[float64]int, len(all)) // number of requests by rate of the window
	for i := range is {
		is[i] = make(map[float64]int)
	}
	at := 0.0
	for _, r := range c.requests(len(all), 1, end) {
		if r.At < at || r.At >= end {
			t.Fatalf("a request at %g s comes after one at %g s", r.At, at)
		}
		at = r.At
		is[r.Model][c.window(int(r.Model), int(at/windowed)).Rate]++
	}
	for i, of := range all {
		if n := is[i][0]; n > 0 {
			t.Errorf("client %d sent %d requests in windows without any", i, n)
		}
		for rate, windows := range map[float64]float64{of[0].Rate: 200, of[3].Rate: 100} {
			if want := rate * windows * windowed; math.Abs(float64(is[i][rate])-want) > 0.03*want {
				t.Errorf("client %d sent %d requests at %g a second, want about %.0f", i, is[i][rate], rate, want)
			}
		}
	}
}

// Gaps have the coefficient of variation of their distribution: 2 for a gamma distribution with
// shape 0.25, and the square root of 5 for a Weibull distribution with shape 0.5.
func TestGaps(t *testing.T) {
	race.Skip(t)
	for w, want := range map[workload.Window]float64{{Rate: 1, Shape: 0.25}: 2, {Rate: 1, Shape: 0.5, Weibull: true}: math.Sqrt(5)} {
		world := World{Models: 1, Clients: []client{{w}}, Rate: 1}
		last, n, sum, squares := 0.0, 0.0, 0.0, 0.0
		for _, r := range world.population(1).requests(1, 1, 400_000) {
			gap := r.At - last
			last, n, sum, squares = r.At, n+1, sum+gap, squares+gap*gap
		}
		mean := sum / n
		if cv := math.Sqrt(squares/n-mean*mean) / mean; math.Abs(cv-want) > 0.05*want {
			t.Errorf("gaps of %+v have a coefficient of variation of %.2f, want %.2f", w, cv, want)
		}
	}
}

// If there are more models than clients, further models are the same clients at other times. The
// total rate is the requested one.
func TestModelsBeyondTheClients(t *testing.T) {
	race.Skip(t)
	w := World{Models: 10, Clients: some, Rate: 30, Measured: 60_000}
	c := w.population(3)
	sum := 0.0
	for model := range w.Models {
		for number := range some[0] {
			sum += c.window(model, number).Rate / float64(len(some[0]))
		}
	}
	if math.Abs(sum-30) > 1e-9 {
		t.Errorf("all models send %g requests a second, want 30", sum)
	}
	if n := len(requests(w, 3)); math.Abs(float64(n)-30*60_000) > 0.05*30*60_000 {
		t.Errorf("there are %d requests, want about %d", n, 30*60_000)
	}
}

// Clients are read from the directory of traces; missing files are errors.
func TestCommandReadsClients(t *testing.T) {
	dir := t.TempDir()
	args := []string{
		"--workload", "servegen-small", "--models", "40", "--endpoints", "4", "--warmup", "5m", "--measure", "5m", "--seeds",
		"1", "--policy", "headgate,lru,optimum",
	}
	if err := runCommand(t.Context(), args, dir, &bytes.Buffer{}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "TRACE_DIR") {
		t.Errorf("without a trace it says %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "servegen"), 0o700); err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	text := gzip.NewWriter(&file)
	for _, name := range []string{"a", "b", "c"} {
		for _, row := range []string{",0,5,1.2,Gamma,0.7,3\n", ",600,1,2,Weibull,0.6,3\n"} {
			if _, err := text.Write([]byte(name + row)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := text.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "servegen", "language-m-small.csv.gz"), file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := runCommand(t.Context(), args, dir, &out, &bytes.Buffer{}); err != nil || !strings.Contains(out.String(), "ServeGen") {
		t.Errorf("it prints %q (%v)", out.String(), err)
	}
}
