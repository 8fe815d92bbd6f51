package workload

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func opened(t *testing.T, text string, o Options) *Source {
	t.Helper()
	s, err := Read("file", strings.NewReader(text), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const logged = `[2026-01-02 15:04:05.000][1][info] starting
{"time":"2026-01-02T15:04:09.500Z","path":"/v1/chat/completions","pick":{"model":"base","pool":"a/b"},"usage":{"prompt":7,"completion":3}}
{"time":"2026-01-02T15:04:05.250Z","path":"/v1/chat/completions","pick":{"model":"lora","pool":"a/b"}}
{"time":"2026-01-02T15:04:06.000Z","path":"/v1/models","status":200}
{"time":"2026-01-02T15:04:06.000Z","path":"/x","pick":{"model":"lora","pool":"a/b","inner":true}}
`

// The format of a file is detected. The result is the same if the file is compressed, or if the
// format is given.
func TestRecorded(t *testing.T) {
	for name, c := range map[string]struct {
		text   string
		format Format
		about  string
		want   []Query
	}{
		"azure": {
			"\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.5000000,374,44\r\n2023-11-16 18:15:48.7500000,396,0\r\n",
			Azure, "azure: 2 requests in 2.25s",
			[]Query{{0, 374, 44, ""}, {2.25, 396, 0, ""}},
		},
		"azure of 2024": {
			"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.5+00:00,1,2\n2024-05-10 00:01:00.5+00:00,3,4\n",
			Azure, "azure: 2 requests in 1m0s",
			[]Query{{0, 1, 2, ""}, {60, 3, 4, ""}},
		},
		"mooncake": {
			`{"timestamp": 500, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}` + "\n" +
				`{"timestamp": 3000, "input_length": 600, "output_length": 4, "hash_ids": [0, 2]}` + "\n\n",
			Mooncake, "mooncake: 2 requests in 2.5s",
			[]Query{{0, 700, 5, ""}, {2.5, 600, 4, ""}},
		},
		"access log": {
			logged, AccessLog,
			"access-log: 2 requests in 4.25s; 3 lines are of requests for no model or of something else, and passed over",
			[]Query{{0, 0, 0, "lora"}, {4.25, 7, 3, "base"}},
		},
		"access log in which not all say tokens": {
			logged + `{"time":"2026-01-02T15:04:10.250Z","pick":{"model":"base"},"usage":{"prompt":10,"completion":8}}` + "\n" +
				`{"time":"2026-01-02T15:04:11.250Z","status":429,"pick":{"model":"base"}}` + "\n" +
				`{"time":"2026-01-02T15:04:12.250Z","status":200,"pick":{"model":"base"},"usage":{"prompt":4}}` + "\n" +
				`{"time":"2026-01-02T15:04:13.250Z","status":200,"pick":{"model":"embedder"},"usage":{"prompt":4}}` + "\n",
			AccessLog, "access-log: 6 requests in 8s; 3 lines are of requests for no model or of something else, and passed over; " +
				"of 2 all tokens or some are those that others for their model have in the mean, for they do not say",
			[]Query{
				{0, 0, 0, "lora"},
				{4.25, 7, 3, "base"},
				{5, 10, 8, "base"},
				{6, 7, 6, "base"},
				{7, 4, 6, "base"},
				{8, 4, 0, "embedder"},
			},
		},
		"csv by seconds": {
			"at, model ,output_tokens\n100,a,3\n100, b,\n101.5,a,4\n", CSV, "csv: 3 requests in 1.5s",
			[]Query{{0, 0, 3, "a"}, {0, 0, 0, "b"}, {1.5, 0, 4, "a"}},
		},
		"csv by moments": {
			"prompt_tokens,timestamp\n1,2026-01-02T15:04:05Z\n2,2026-01-02T16:04:35.5+01:00\n", CSV, "csv: 2 requests in 31s",
			[]Query{{0, 1, 0, ""}, {30.5, 2, 0, ""}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var zipped bytes.Buffer
			w := gzip.NewWriter(&zipped)
			_, errWrite := w.Write([]byte(c.text))
			if err := w.Close(); err != nil || errWrite != nil {
				t.Fatal(err, errWrite)
			}
			for text, o := range map[string]Options{c.text: {}, zipped.String(): {Format: c.format}} {
				s := opened(t, text, o)
				if got := s.Queries(1); !slices.Equal(got, c.want) || s.Generated || s.About != c.about {
					t.Errorf("%s: %v, want %s: %v", s.About, got, c.about, c.want)
				}
				s.Queries(1)[0].At = 9
				if s.Queries(1)[0].At == 9 {
					t.Error("callers share their queries")
				}
			}
		})
	}
}

// Requests are generated separately for each model and window, at the given rates.
func TestGenerated(t *testing.T) {
	const result = `{"status":"success","data":{"resultType":"matrix","result":[%s]}}`
	for name, c := range map[string]struct {
		text, about string
		o           Options
		want        map[string][]float64 // by model: requests per second in each period of 100 s
	}{
		"minutes": {
			"minute,rate\n10,20\n15,0\n20,5\n", "rates: some 7500 requests in 15m0s, drawn by their rates; one model",
			Options{},
			map[string][]float64{"": {20, 20, 20, 0, 0, 0, 5, 5, 5}},
		},
		"windows of their own": {
			"seconds,rate,cv,model,prompt_tokens\n0,20,2,a,7\n100,10,1,b,\n300,10,0.5,a,7\n300,20,1,b,\n",
			"rates: some 15000 requests in 10m0s, drawn by their rates; 2 models",
			Options{},
			map[string][]float64{"a": {20, 20, 20, 10, 10, 10}, "b": {0, 10, 10, 20, 20}},
		},
		"moments": {
			"time,rate\n2026-01-02T15:00:00Z,30\n2026-01-02T15:10:00Z,10\n",
			"rates: some 24000 requests in 20m0s, drawn by their rates; one model",
			Options{CV: 2},
			map[string][]float64{"": {30, 30, 30, 30, 30, 30, 10, 10, 10, 10, 10, 10}},
		},
		"a part": {
			"minute,rate\n0,20\n5,10\n", "rates: some 5000 requests in 5m0s, drawn by their rates; one model",
			Options{From: 100, Seconds: 300},
			map[string][]float64{"": {20, 20, 10}},
		},
		"by model": {
			fmt.Sprintf(result, `{"metric":{"model_name":"a","pod":"x"},"values":[[1000,"10"],[1100,"20"]]},
			{"metric":{"model_name":"b"},"values":[[1000,"5"],[1200.001,"5"]]},{"metric":{"model_name":"a","pod":"y"},"values":[[1000,"1"],[1200,"3"]]}`),
			"prometheus: some 4400 requests in 5m0s, drawn by their rates; 2 models, rates by 1m40s, 3 without a value, which are 0",
			Options{},
			map[string][]float64{"a": {11, 20, 3}, "b": {5, 0, 5}},
		},
		"summed": {
			fmt.Sprintf(result,
				`{"metric":{"model":"a"},"values":[[1000,"10"],[1100,"20"]]},{"metric":{},"values":[[1000,"10"],[1100,"0"]]}`),
			"prometheus: some 4000 requests in 3m20s, drawn by their rates; one model, rates by 1m40s",
			Options{CV: 0.5},
			map[string][]float64{"": {20, 20}},
		},
		"clients": {
			"a.csv,0,20,2,Gamma,0.25,3\na.csv,600,0,0,,0,0\nb.csv,0,4,1,Weibull,0.7,1\nb.csv,600,20,1,Weibull,2,1\n",
			"servegen: some 26400 requests in 20m0s, drawn by their rates; 2 clients, each a model",
			Options{},
			map[string][]float64{"a.csv": {20, 20, 20, 20, 20, 20, 0, 0, 0, 0, 0, 0}, "b.csv": {4, 4, 4, 4, 4, 4, 20, 20, 20, 20, 20, 20}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := opened(t, c.text, c.o)
			if s.About != c.about || !s.Generated {
				t.Errorf("about %q, want %q", s.About, c.about)
			}
			const seeds = 60
			is := map[string][]float64{}
			for model, rates := range c.want {
				is[model] = make([]float64, len(rates))
			}
			for seed := range uint64(seeds) {
				last := 0.0
				for _, q := range s.Queries(seed) {
					n := int(q.At / 100)
					if q.At < last || n >= len(is[q.Model]) {
						t.Fatalf("a query %v after one at %g", q, last)
					}
					last = q.At
					is[q.Model][n]++
				}
			}
			for model, rates := range c.want {
				for n, rate := range rates {
					// The variance of the number of requests is at most CV² = 2 times their mean.
					want := rate * 100 * seeds
					if got := is[model][n]; math.Abs(got-want) > 4*2*math.Sqrt(want) {
						t.Errorf("model %q has %.0f queries in its window %d, want about %.0f", model, got, n, want)
					}
				}
			}
			if first, again := s.Queries(5), s.Queries(5); !slices.Equal(first, again) || slices.Equal(first, s.Queries(6)) {
				t.Error("a seed is not always the same trace, or two are")
			}
		})
	}
	if all := opened(t, "seconds,rate,prompt_tokens,output_tokens\n0,9,7,3\n60,9,7,3\n", Options{}).Queries(1); all[0].Prompt != 7 ||
		all[0].Output != 3 {
		t.Errorf("tokens are lost: %v", all[0])
	}
}

// Gaps between requests have the right mean and coefficient of variation, also at the start of a
// trace.
func TestGamma(t *testing.T) {
	for _, cv := range []float64{0.2, 1, 4} {
		s, err := Open(os.Open, fmt.Sprintf("gamma:rate=50,cv=%g,queries=400000,prompt=9", cv), Options{})
		if err != nil {
			t.Fatal(err)
		}
		all := s.Queries(3)
		if len(all) != 400_000 || all[7].Prompt != 9 || all[7].Output != 0 || !s.Generated {
			t.Fatalf("there are %d queries such as %v", len(all), all[7])
		}
		sum, squares := 0.0, 0.0
		for i := range all[1:] {
			gap := all[i+1].At - all[i].At
			sum, squares = sum+gap, squares+gap*gap
		}
		n := float64(len(all) - 1)
		mean := sum / n
		if is := math.Sqrt(squares/n-mean*mean) / mean; math.Abs(mean*50-1) > 0.01*(1+cv) || math.Abs(is/cv-1) > 0.03 {
			t.Errorf("gaps have a mean of %g s and a coefficient of variation of %.3f, want 0.02 and %g", mean, is, cv)
		}
		// A trace must begin at an arbitrary moment, not with a request. Otherwise the rate would
		// be too high in a short trace with bursts.
		short, err := Open(os.Open, fmt.Sprintf("gamma:rate=50,cv=%g,seconds=2", cv), Options{})
		if err != nil {
			t.Fatal(err)
		}
		count := 0.0
		const seeds = 4000
		for seed := range uint64(seeds) {
			count += float64(len(short.Queries(seed)))
		}
		if is := count / seeds; math.Abs(is-100) > 4*cv*math.Sqrt(100.0/seeds) {
			t.Errorf("2 s at 50 a second with a coefficient of variation of %g have %.2f queries in the mean, want 100", cv, is)
		}
	}
}

// For both distributions, the mean time from an arbitrary moment to the next request is (1+cv²)/2
// mean gaps.
func TestRest(t *testing.T) {
	source := rand.NewPCG(1, 1) //nolint:gosec // no secret
	for w, squared := range map[Window]float64{
		{Rate: 1, Shape: 0.25}: 4, {Rate: 1, Shape: 3}: 1 / 3.0,
		{Rate: 1, Shape: 0.7, Weibull: true}: 2.1388, {Rate: 1, Shape: 2, Weibull: true}: 0.2732,
	} {
		gaps, rests := 0.0, 0.0
		const n = 400_000
		for range n {
			gaps, rests = gaps+w.Gap(source)/n, rests+w.rest(source)/n
		}
		if want := (1 + squared) / 2; math.Abs(gaps-1) > 0.02 || math.Abs(rests-want) > 0.02*want {
			t.Errorf("%+v: gaps have the mean %.3f, and rests %.3f, want 1 and %.3f", w, gaps, rests, want)
		}
	}
}

// The mean number of requests in each window matches the window's rate. That holds even if many
// windows pass between two requests, or if the shape changes. Gaps have the right shape if time is
// scaled by the rates.
func TestWindows(t *testing.T) {
	short := process{}
	for range 20_000 {
		short.windows = append(short.windows, Window{Seconds: 1, Rate: 0.3, Shape: 25}, Window{Seconds: 1, Rate: 0.1, Shape: 25},
			Window{Seconds: 1})
	}
	source := rand.NewPCG(1, 2) //nolint:gosec // no secret
	all := short.draw(source)
	passed := func(at float64) float64 { // expected number of requests up to a time
		whole, rest := math.Floor(at/3), math.Mod(at, 3)
		return 0.4*whole + 0.3*min(rest, 1) + 0.1*min(max(0, rest-1), 1)
	}
	sum, squares := 0.0, 0.0
	for i := range all[1:] {
		gap := passed(all[i+1].At) - passed(all[i].At)
		sum, squares = sum+gap, squares+gap*gap
	}
	n := float64(len(all) - 1)
	if cv := math.Sqrt(squares/n-sum/n*sum/n) / (sum / n); math.Abs(float64(len(all))-8000) > 100 || math.Abs(cv-0.2) > 0.02 {
		t.Errorf("there are %d with a coefficient of variation of %.3f, want some 8000 and 0.2", len(all), cv)
	}
	changing := process{windows: []Window{
		{Seconds: 10, Rate: 10, Shape: 100},
		{Seconds: 10, Rate: 10, Shape: 0.01},
		{Seconds: 10, Rate: 10, Shape: 100},
	}}
	var is [3]float64
	const draws = 20_000
	for range draws {
		for _, q := range changing.draw(source) {
			is[int(q.At/10)] += 1.0 / draws
		}
	}
	// In the second window, the number of requests has a variance of about 100 times its mean of
	// 100.
	if math.Abs(is[0]-100) > 0.1 || math.Abs(is[1]-100) > 4 || math.Abs(is[2]-100) > 0.1 {
		t.Errorf("windows have %v queries in the mean, want 100 each", is)
	}
}

// Rounded times are spread at random over the rounding interval. Times that are regular or not
// rounded do not change.
func TestQuantum(t *testing.T) {
	lines := func(n int, at func(i int) int) string {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, "{\"timestamp\": %d, \"input_length\": %d, \"output_length\": 1}\n", at(i), i+1)
		}
		return text.String()
	}
	rounded := opened(t, lines(4000, func(i int) int { return i / 4 * 3000 / 10 * 10 }), Options{})
	if rounded.About != "mooncake: 4000 requests in 49m57s; times are rounded to 3 s, and jittered within" || rounded.Generated {
		t.Errorf("rounded times are %q", rounded.About)
	}
	all := rounded.Queries(1)
	if !slices.Equal(all, rounded.Queries(1)) || slices.Equal(all, rounded.Queries(2)) {
		t.Error("jitter is not by the seed")
	}
	var thirds [3]int
	for i, q := range all {
		if i > 0 && q.At < all[i-1].At {
			t.Fatalf("query %d comes before the one before it", i)
		}
		if stamp := float64((q.Prompt - 1) / 4 * 3); q.At < stamp || q.At >= stamp+3 {
			t.Fatalf("a query of %g s comes at %g s", stamp, q.At)
		}
		thirds[int(q.At)%3]++
	}
	for _, n := range thirds {
		if math.Abs(float64(n)-4000/3.0) > 150 {
			t.Errorf("in the seconds of 3 s are %v queries", thirds)
		}
	}
	for name, at := range map[string]func(i int) int{
		"a clock's":            func(i int) int { return i * 3000 },
		"measured":             func(i int) int { return i/2*1000 + i/2*(i/2)%17*3 },
		"few times":            func(i int) int { return i / 20 * 1000 },
		"rounded, but for one": func(i int) int { return i/4*3000 + i/99*401 },
	} {
		if s := opened(t, lines(100, at), Options{}); strings.Contains(s.About, "jittered") {
			t.Errorf("%s: %s", name, s.About)
		}
	}
	off := lines(100, func(i int) int { return i/4*3000 - i/4%2 })
	if s := opened(t, off, Options{}); !strings.Contains(s.About, "3 s, and jittered") {
		t.Errorf("rounded times that are a millisecond off are %q", s.About)
	}
}

// The times in a part of a recorded trace start at 0.
func TestPart(t *testing.T) {
	s := opened(t, "at\n5\n6\n7\n9\n12\n", Options{From: 1, Seconds: 4})
	if got, want := s.Queries(1), []Query{{At: 0}, {At: 1}, {At: 3}}; !slices.Equal(got, want) {
		t.Errorf("a part is %v, want %v", got, want)
	}
	for _, o := range []Options{{From: -1}, {Seconds: math.NaN()}, {From: math.Inf(1)}} {
		if _, err := Read("file", strings.NewReader("at\n5\n6\n"), o); err == nil || !strings.Contains(err.Error(), "file: a part") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	g, err := Open(os.Open, "gamma:rate=10,queries=100", Options{From: 4})
	if err != nil || len(g.Queries(1)) != 60 {
		t.Errorf("what is left of 100 queries after 40 is %v (%v)", g, err)
	}
}

// The requests of different models are generated independently.
func TestModelsAreIndependent(t *testing.T) {
	all := opened(t, "seconds,rate,model\n0,10,a\n0,10,b\n60,10,a\n60,10,b\n", Options{}).Queries(1)
	for i := range all[1:] {
		if all[i].At == all[i+1].At {
			t.Fatalf("two models have queries at %g s", all[i].At)
		}
	}
}

func TestSplitAndScaled(t *testing.T) {
	all := []Query{{At: 0}, {At: 1, Model: "a"}, {At: 4}, {At: 5}, {At: 10, Prompt: 3}}
	plan, test := Split(all, 0.4)
	if want := []Query{{At: 0}, {At: 1, Model: "a"}}; !slices.Equal(plan, want) {
		t.Errorf("the first part is %v, want %v", plan, want)
	}
	if want := []Query{{At: 0}, {At: 1}, {At: 6, Prompt: 3}}; !slices.Equal(test, want) {
		t.Errorf("the rest is %v, want %v", test, want)
	}
	if plan, test := Split(nil, 0.5); plan != nil || test != nil {
		t.Errorf("nothing is cut into %v and %v", plan, test)
	}
	if got := Scaled(all, 4); got[4] != (Query{At: 2.5, Prompt: 3}) || all[4].At != 10 || test[2].At != 6 {
		t.Errorf("four times as fast it is %v", got)
	}
}

// Errors contain the file and the line, and say what to write.
func TestMalformed(t *testing.T) {
	const (
		azure    = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,374,44\n"
		mooncake = `{"timestamp": 3000, "input_length": 700, "output_length": 5}` + "\n"
		entry    = `{"time":"2026-01-02T15:04:09.500Z","pick":{"model":"base"}}` + "\n"
		clients  = "a,0,0.5,1.2,Gamma,0.7,3\n"
		matrix   = `{"status":"success","data":{"resultType":"matrix","result":[%s]}}`
	)
	result := func(values ...string) string {
		for i, v := range values {
			values[i] = `{"metric":{},"values":[` + v + `]}`
		}
		return fmt.Sprintf(matrix, strings.Join(values, ","))
	}
	for _, c := range []struct{ text, want string }{
		{"", "file is empty: write columns such as at,model"},
		{" \n\n", "file is empty"},
		{
			"hello\nworld\n",
			"file: line 1: the format is unknown: write columns such as at,model,prompt_tokens,output_tokens (at in seconds)",
		},
		{"\x1f\x8bno", "file: "},
		{azure, "two requests"},
		{azure + "2023-11-16 18:15:45.5,1,1\n", "file: line 3: time goes back, by 1 s: sort the lines"},
		{azure + "yesterday,1,2\n", `file: line 3: timestamp is "yesterday": write such as 2006-`},
		{azure + "2023-11-16 18:15:47.5,many,44\n", `line 3: contexttokens is "many": write a whole number`},
		{azure + "2023-11-16 18:15:47.5,1,-44\n", `line 3: generatedtokens is "-44"`},
		{azure + "2023-11-16 18:15:47.5,1\n", "line 3: wrong number of fields"},
		{"TIMESTAMP,ContextTokens\n", "line 1: the column generatedtokens is missing: write timestamp,contexttokens,generatedtokens"},
		{mooncake, "two requests"},
		{mooncake + mooncake, "two requests, at two times"},
		{mooncake + "none\n", "file: line 2: invalid character"},
		{mooncake + "\n{}\n", "line 3: there is no timestamp: write such as"},
		{mooncake + `{"timestamp": 2000}`, "line 2: time goes back, by 1 s"},
		{mooncake + `{"timestamp": 1e999}`, "line 2: json"},
		{mooncake + `{"timestamp": 4000, "input_length": -1}`, "line 2: tokens are -1 and 0"},
		{mooncake + `{"timestamp": 4000, "input_length": 99999999999}`, "line 2: json"},
		{entry + `{"time":"2026-01-02T15:04:09.500Z"}`, "two requests"},
		{entry + `{"pick":{"model":"base"}}`, "line 2: there is no time"},
		{entry + `{"time":"today"}`, "line 2: parsing time"},
		{entry + `{"time":"2026-01-02T15:04:09.500Z","pick":{"model":"base"},"usage":{"prompt":-2}}`, "line 2: tokens are -2 and 0"},
		{"at\n", "two requests"},
		{"at\n3\n", "two requests"},
		{"at\n3\n2\n", "file: line 3: time goes back"},
		{"at\n3\nNaN\n", `line 3: at is "NaN": write a number`},
		{"at\n3\n+Inf\n", `line 3: at is "+Inf": write a number`},
		{"at,timestamp\n", "line 1: requests have one time: write one of at (seconds)"},
		{"at,at\n", "line 1: the column \"at\" is there twice"},
		{"at,user\n", `line 1: no column is called "user": write some of at, timestamp, model, prompt_tokens, output_tokens`},
		{"at,prompt_tokens\n0,1\n1,1.5\n", `line 3: prompt_tokens is "1.5"`},
		{"timestamp\n2026-01-02T15:04:05Z\n15:04\n", `line 3: timestamp is "15:04"`},
		{"minute,rate\n", "no lines but the first"},
		{"minute,rate\n0,-1\n", "line 2: a rate of -1: write requests a second"},
		{"minute,rate\n0,NaN\n", `line 2: rate is "NaN"`},
		{"minute,rate\n0,1\n0,1\n", "line 3: a window begins at 0 s, and the one before it at 0 s"},
		{"minute,seconds,rate\n", "line 1: windows begin once"},
		{"rate\n", "line 1: windows begin once and have a rate: write such as minute,rate"},
		{"minute,rate,cv\n0,1,0\n", "line 2: a coefficient of variation (cv) of 0: write one from 0.01 to 100"},
		{"seconds,rate\n0,1\n", "nothing says when the only window ends"},
		{"seconds,rate,prompt_tokens\n0,1,5\n60,1,6\n", "line 3: the tokens of a model stay"},
		{"minute,rate\n0,0.01\n", "file: it would have 0.6 requests in the mean, and needs 2"},
		{"minute,rate\n0,1e6\n", "file: it would have 6e+07 requests, and may have 50000000: take a part"},
		{"minute,rate\n0,1\n1e300,0\n", "line 3: the time is 6e+301 s, which is thousands of years"},
		{
			"at\n0\n1764150000000\n",
			"line 3: the time is 1764150000000 s, which is thousands of years: divide by 1,000 if it is in milliseconds",
		},
		{"seconds,rate\n1764150000000,1\n", "line 2: the time is 1764150000000 s"},
		{"minute,rate\n0,1e6\n1000,0\n", "requests, and may have 50000000"},
		{clients + "a,1200,1,1,Gamma,1,1\n", "file: line 2: a window begins at 1200 s, want 600"},
		{clients + "a,600,-1,1,Gamma,1,1\n", "line 2: a rate of -1"},
		{clients + "a,600,1,1,Gamma,0,1\n", "line 2: a rate of 1 with the shape 0"},
		{clients + "a,600,1,1,Gamma,1e-9,1\n", "line 2: a rate of 1 with the shape 1e-09, which has"},
		{clients + "a,600,1,1,Weibull,0.001,1\n", "line 2: a rate of 1 with the shape 0.001, which has"},
		{clients + "a,600,1,1,Pareto,1,1\n", "line 2: the family is \"Pareto\": write Gamma or Weibull"},
		{clients + "a,600,many,1,Gamma,1,1\n", "line 2: strconv"},
		{clients + "a,600,1,1,Gamma,1\n", "line 2: wrong number of fields"},
		{clients + "b,0,1,1,Gamma,1,1\nb,600,1,1,Gamma,1,1\n", "the client b has 2 windows, and the first 1"},
		{"a,0,NaN,1.2,Gamma,0.7,3\n", "line 1: a rate of NaN"},
		{"a,0,0,0,,0,0\n", "no client sends anything"},
		{
			`{"status":"error","errorType":"bad_data","error":"parse error"}`,
			"the query failed (error, bad_data parse error): ask /api/v1/query_range",
		},
		{`{"status":"success","data":{"resultType":"vector","result":[]}}`, `the result is a "vector", want a matrix: ask`},
		{`{"status":"success","data":{"resultType":`, "file: at byte"},
		{result(), "there are no series"},
		{result(""), "a series has no values"},
		{result(`[0,"1"]`, `[60,"1"]`), "each series has one value"},
		{result(`[0,"1"],[0,"1"]`), "times of a series go back or stay"},
		{result(`[0,"1"],[60,"1"],[75,"1"],[100,"1"]`), "values are not by steps of 15 s (there is one at 100.000)"},
		{result(`[0,"1"],[60,"NaN"]`), `the value at 60 is "NaN": write a query for requests a second`},
		{result(`[0,"1"],[60,"-1"]`), `the value at 60 is "-1"`},
		{result(`[0,"1"],[60,"+Inf"]`), `the value at 60 is "+Inf"`},
		{result(`[0,"1"],[60]`), "a value is [60]: write"},
		{result(`[0,"1"],[1e-5,"1"],[1e5,"1"]`), "there are 10000000000 steps, and may be 1000000"},
	} {
		if _, err := Read("file", strings.NewReader(c.text), Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("of %q it says %v, want %q", c.text, err, c.want)
		}
	}
	for spec, want := range map[string]string{
		"":                               `"" is no setting`,
		"rate=1":                         "either seconds or queries: write such as gamma:rate=100,cv=4,seconds=600",
		"seconds=5":                      "it has a rate",
		"rate=1,seconds=5,queries=6":     "either seconds or queries",
		"rate=1,rate=2,seconds=5":        `"rate=2" is no setting, or one that was given`,
		"rate=1,second=5":                `there is no "second"`,
		"rate=NaN,seconds=5":             `rate is "NaN": write a number above 0`,
		"rate=-1,seconds=5":              `rate is "-1"`,
		"rate=1,seconds=+Inf":            `seconds is "+Inf"`,
		"rate=1,queries=2.5":             `queries is "2.5": write a whole number`,
		"rate=1,prompt=3e9,seconds=5":    `prompt is "3e9": write a whole number of at most`,
		"rate=1,cv=1e3,seconds=5":        "cv) of 1000: write one from 0.01 to 100",
		"rate=1,seconds=1":               "1 requests in the mean, and needs 2",
		"rate=1e9,seconds=1e9":           "1e+18 requests, and may have 50000000",
		"rate=1,queries=100000000,cv=2":  "1e+08 requests, and may have 50000000",
		"rate=1,queries=1":               "needs 2",
		"rate=1,queries=100,cv=2,prompt": `"prompt" is no setting`,
	} {
		if _, err := Open(os.Open, "gamma:"+spec, Options{}); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "gamma:") {
			t.Errorf("of gamma:%s it says %v, want %q", spec, err, want)
		}
	}
	if _, err := Read("file", strings.NewReader("at\n1\n2\n"), Options{Format: "xml"}); err == nil ||
		!strings.Contains(err.Error(), `no file has the format "xml": use one of access-log, azure, csv,`) {
		t.Errorf("an unknown format is %v", err)
	}
}

// Open reads files and texts of generated traces.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "own.csv")
	if err := os.WriteFile(path, []byte("at\n1\n2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(os.Open, path, Options{}); err != nil || s.Name != "own.csv" {
		t.Errorf("a file is %v (%v)", s, err)
	}
	if _, err := Open(os.Open, filepath.Join(dir, "none.csv"), Options{}); err == nil ||
		!strings.Contains(err.Error(), "none.csv: no such file") {
		t.Errorf("a file that is not there is %v", err)
	}
	if s, err := Open(os.Open, "gamma:rate=2,seconds=60", Options{Format: Gamma}); err != nil || s.Name != "gamma:rate=2,seconds=60" ||
		s.About != "gamma: some 120 requests in 1m0s, drawn by their rates; gaps have a coefficient of variation of 1" {
		t.Errorf("a text is %+v (%v)", s, err)
	}
}

func TestReadMooncakeBlocks(t *testing.T) {
	all, err := ReadMooncake(strings.NewReader(`{"timestamp": 3000, "input_length": 700, "output_length": 0, "hash_ids": [4, 1]}`))
	if err != nil || len(all) != 1 || all[0].Query != (Query{3, 700, 0, ""}) || !slices.Equal(all[0].Blocks, []uint32{4, 1}) {
		t.Errorf("a row is %v (%v)", all, err)
	}
}

func TestReadServeGen(t *testing.T) {
	all, err := ReadServeGen(strings.NewReader("a.csv,0,0.5,1.2,Gamma,0.7,3\na.csv,600,0,0,,0,0\nb.csv,0,2,1,Weibull,1.1,0.4\nb.csv,600,1,1,Gamma,1,1\n"))
	if err != nil || len(all) != 2 || all[1].Name != "b.csv" || all[0].Windows[0] != (Window{600, 0.5, 0.7, false}) ||
		all[0].Windows[1].Rate != 0 || all[1].Windows[0] != (Window{600, 2, 1.1, true}) {
		t.Errorf("clients are %v (%v)", all, err)
	}
}
