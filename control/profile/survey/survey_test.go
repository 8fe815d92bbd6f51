package survey_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/headgate/headgate/control/profile/survey"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/profile/fit"
)

var rule = survey.Rule{Precision: 0.03, Least: 5, Most: 50, Limit: 60}

// swinging returns n values that alternate between 1+by and 1-by.
func swinging(n int, by float64) (all []float64) {
	for i := range n {
		all = append(all, 1+by*float64(1-2*(i%2)))
	}
	return all
}

func TestWhenAPointIsMeasuredEnough(t *testing.T) {
	batch, prompts, steps := survey.Point{Batch: 1}, survey.Point{Batch: 1, Asked: 8, Outputs: 1},
		survey.Point{Batch: 4, Asked: 8, Outputs: 30}
	quick := rule
	quick.Limit = 4
	patient := survey.Rule{Precision: 0.03, Least: 20, Most: 50, Limit: 600}
	for _, c := range []struct {
		name   string
		rule   survey.Rule
		at     survey.Point
		values []float64
		want   bool
	}{
		{"nothing", rule, batch, nil, false},
		{"fewer than the least, though equal", rule, batch, swinging(4, 0), false},
		{"the least, equal", rule, batch, swinging(5, 0), true},
		{"the least, of prompts", rule, prompts, swinging(5, 0), true},
		{"10 within 10 %: ±7.5 %", rule, batch, swinging(10, 0.1), false},
		{"44 within 10 %: ±3.08 %", rule, batch, swinging(44, 0.1), false},
		{"48 within 10 %: ±2.94 %", rule, batch, swinging(48, 0.1), true},
		{"49 within 30 %", rule, batch, swinging(49, 0.3), false},
		{"the most, however far off", rule, batch, swinging(50, 0.3), true},
		{"the time is over", quick, batch, swinging(4, 0.3), true},
		{"the time is over, and three are needed", quick, batch, []float64{2, 3}, false},
		{"the time is over, of 30 tokens in each", rule, steps, swinging(3, 0.3), true},
		{"a quarter of the least of steps", patient, steps, swinging(5, 0), true},
		{"fewer steps", patient, steps, swinging(4, 0), false},
	} {
		if got := (survey.Plan{Rule: c.rule}).Enough(c.at, survey.Summarize(c.values)); got != c.want {
			t.Errorf("%s: enough is %v, want %v (%+v)", c.name, got, c.want, survey.Summarize(c.values))
		}
	}
}

// The confidence interval follows Student's t-distribution.
func TestIntervalIsStudents(t *testing.T) {
	for n := 2; n <= 1000; n++ {
		values := swinging(n, 0.5)
		s := survey.Summarize(values)
		var squares float64
		for _, v := range values {
			squares += (v - s.Mean) * (v - s.Mean)
		}
		want := distuv.StudentsT{Sigma: 1, Nu: float64(n - 1)}.Quantile(0.975) * math.Sqrt(squares/float64(n-1)/float64(n))
		if math.Abs(s.Half/want-1) > 0.01 {
			t.Errorf("half of the interval of %d values is %v, want %v", n, s.Half, want)
		}
	}
	if s := survey.Summarize([]float64{1}); !math.IsInf(s.Half, 1) {
		t.Errorf("of one value half of the interval is %v", s.Half)
	}
}

// If a point is measured until the rule is satisfied, the mean is within the rule's precision in
// about 95 of 100 cases.
func TestMeanIsWithinThePrecision(t *testing.T) {
	const runs = 1000
	plan := survey.Plan{Rule: survey.Rule{Precision: 0.05, Least: 20, Most: 10000, Limit: 1e9}}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test's
	within := 0
	for range runs {
		var values []float64
		for !plan.Enough(survey.Point{Batch: 1}, survey.Summarize(values)) {
			values = append(values, 0.7+0.3*random.ExpFloat64()) // random values with mean 1
		}
		if math.Abs(survey.Summarize(values).Mean-1) <= 0.05 {
			within++
		}
	}
	if share := float64(within) / runs; share < 0.91 || share > 0.99 {
		t.Errorf("%.1f %% of means are within the precision", 100*share)
	}
}

func TestQuantiles(t *testing.T) {
	ramp := func(n int) (all []float64) {
		for i := range n {
			all = append(all, float64(n-i))
		}
		return all
	}
	for _, c := range []struct {
		values []float64
		want   string
	}{
		{nil, ""},
		{[]float64{1}, ""},
		{[]float64{2, 2, 2}, ""},
		{ramp(2), "0:1 0.5:1.5 1:2"},
		{ramp(4), "0:1 0.25:1.75 0.5:2.5 0.75:3.25 1:4"},
		{ramp(9), "0:1 0.25:3 0.5:5 0.75:7 1:9"},
		{ramp(11), "0:1 0.1:2 0.25:3.5 0.5:6 0.75:8.5 0.9:10 1:11"},
		{ramp(20), "0:1 0.1:2.9 0.25:5.75 0.5:10.5 0.75:15.25 0.9:18.1 0.95:19.05 1:20"},
		{ramp(99), "0:1 0.1:10.8 0.25:25.5 0.5:50 0.75:74.5 0.9:89.2 0.95:94.1 1:99"},
		{ramp(101), "0:1 0.1:11 0.25:26 0.5:51 0.75:76 0.9:91 0.95:96 0.99:100 1:101"},
	} {
		var got []string
		for _, q := range survey.Quantiles(c.values) {
			got = append(got, fmt.Sprintf("%v:%v", q.Share, q.Seconds))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("of %d values they are %v, want %s", len(c.values), got, c.want)
		}
	}
}

func TestSizes(t *testing.T) {
	for most, want := range map[int]string{1: "[1]", 2: "[1 2]", 8: "[1 2 4 8]", 24: "[1 2 4 8 16 24]"} {
		if got := fmt.Sprint(survey.Sizes(most)); got != want {
			t.Errorf("up to %d they are %s, want %s", most, got, want)
		}
	}
}

var (
	ofBatches = survey.Subject{Model: `a "b", c`, Hardware: "t4", API: survey.V2, Request: "01234567"}
	ofLLM     = survey.Subject{Model: "llama", TensorParallel: 2, API: survey.Chat}
	batchRows = []survey.Row{{Point: survey.Point{Batch: 1}, Seconds: 0.0123}, {Point: survey.Point{Batch: 16}, Seconds: 1.000000001}}
	llmRows   = []survey.Row{
		{Point: survey.Point{Batch: 1, Asked: 512, Outputs: 1}, Seconds: 0.25, FrontendOverhead: 0.01, Prompt: 513},
		{Point: survey.Point{Batch: 1, Asked: 512, Outputs: 1}, Seconds: 0.5, Prompt: 514},
		{Point: survey.Point{Batch: 4, Asked: 16, Outputs: 64}, Seconds: 1e-5, Prompt: 17, KV: 196},
		{Point: survey.Point{Batch: 4, Asked: 16, Outputs: 1}, Seconds: 0.3, Prompt: 17},
		{
			Point: survey.Point{Batch: 1, Asked: 512, Outputs: 64, Beside: 8}, Seconds: 0.05, Prompt: 513, KV: 300, FirstToken: 0.07,
			Step: 0.005,
		},
	}
)

func written(s survey.Subject, rows []survey.Row) []byte {
	text := s.Header()
	for _, r := range rows {
		text = append(text, s.Line(r)...)
	}
	return text
}

// A file may be cut at any byte because its program was killed. All complete lines are read, and
// the missing measurements are repeated. After that, the file equals one that was written without a
// break.
func TestTruncatedFileIsReadUpToItsEnd(t *testing.T) {
	for _, c := range []struct {
		of   survey.Subject
		rows []survey.Row
	}{{ofBatches, batchRows}, {ofLLM, llmRows}} {
		text := written(c.of, c.rows)
		for cut := range len(text) + 1 {
			rows, whole, err := c.of.Read("x.csv", text[:cut])
			lines := max(0, bytes.Count(text[:cut], []byte("\n"))-1)
			if err != nil || len(rows) != lines || lines > 0 && !reflect.DeepEqual(rows, c.rows[:lines]) {
				t.Fatalf("cut at %d of %d: %v, %+v, want %+v", cut, len(text), err, rows, c.rows[:lines])
			}
			again := text[:whole:whole]
			if whole == 0 {
				again = c.of.Header()
			}
			for _, r := range c.rows[lines:] {
				again = append(again, c.of.Line(r)...)
			}
			if !bytes.Equal(again, text) {
				t.Fatalf("cut at %d, the file becomes\n%s", cut, again)
			}
		}
	}
}

func TestFileOfAnotherSurveyIsRejected(t *testing.T) {
	other := func(change func(*survey.Subject)) []byte {
		s := ofBatches
		change(&s)
		return written(s, batchRows)
	}
	const measuredAnew = ": remove the line to measure it again"
	for _, c := range []struct {
		text []byte
		want string
	}{
		{[]byte("hello"), "x.csv is not a measurement file of this kind: use another file with -o, or remove it"},
		{[]byte("hello\n"), "x.csv is not a measurement file of this kind"},
		{written(ofLLM, llmRows), "x.csv is not a measurement file of this kind"},
		{
			other(func(s *survey.Subject) { s.Model = "d" }),
			`x.csv:2 is of model d, hardware t4, api v2, request 01234567, and this is of model a "b", c, hardware t4, api v2, request 01234567: use another file with -o, or remove that one to start again`,
		},
		{other(func(s *survey.Subject) { s.Hardware = "" }), "x.csv:2 is of model a"},
		{other(func(s *survey.Subject) { s.API = survey.Embeddings }), "api embeddings, request 01234567, and this is of"},
		{other(func(s *survey.Subject) { s.Request = "76543210" }), "request 76543210, and this is of"},
		{append(ofBatches.Header(), "a,t4\n"...), "x.csv:2 has 2 cells, and the first line 6" + measuredAnew},
		{append(ofBatches.Header(), "\"a \"\"b\"\", c\",t4,v2,01234567,many,1\n"...), `x.csv:2: "many" is not an integer` + measuredAnew},
		{append(ofBatches.Header(), "\"a \"\"b\"\", c\",t4,v2,01234567,1,-1\n"...), `x.csv:2: "-1" is not a time` + measuredAnew},
		{append(ofBatches.Header(), "\"a \"\"b\"\", c\",t4,v2,01234567,,1\n"...), "x.csv:2: a row needs a batch and a time" + measuredAnew},
	} {
		if _, _, err := ofBatches.Read("x.csv", c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("of\n%s\nthe fault is %v\nwant %s", c.text, err, c.want)
		}
	}
}

// "headgate profile fit" reads the file that "headgate profile" writes for an LLM, and both
// commands fit the same profile.
func TestFitReadsTheFile(t *testing.T) {
	var plan survey.Plan
	var rows []survey.Row
	for _, n := range []int{16, 256, 1024, 2048} {
		at := survey.Point{Batch: 1, Asked: n, Outputs: 1}
		plan.Points = append(plan.Points, at)
		for i := range 3 {
			rows = append(rows, survey.Row{Point: at, Prompt: n + 1, FrontendOverhead: 0.004, Seconds: 0.014 + 1e-5*float64(n+1) +
				1e-6*float64(i)})
		}
	}
	for _, together := range []int{1, 4, 16} {
		for _, n := range []int{16, 1024} {
			at := survey.Point{Batch: together, Asked: n, Outputs: 64}
			plan.Points = append(plan.Points, at)
			kv := together * (n + 33)
			rows = append(rows, survey.Row{Point: at, Prompt: n + 1, KV: kv, Seconds: 0.01 + 1e-4*float64(together) + 1e-7*float64(kv)})
		}
	}
	plan.Rule = rule
	own, err := plan.LLM("", ofLLM, rows, profile.Limits{MaxSequences: 1, MaxBatchedTokens: 1, KVBlocks: 1, BlockSize: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	read, err := fit.Read("x.csv", bytes.NewReader(written(ofLLM, rows)))
	if err != nil {
		t.Fatal(err)
	}
	f, err := fit.Of(read)
	if err != nil || f.Prefill != own.Prefill || f.Decode != own.Decode || f.FrontendOverhead != own.FrontendOverhead ||
		len(fit.Sets(read)) != 1 {
		t.Errorf("%v: by the file it is %+v, want %+v", err, f, own)
	}
	if math.Abs(own.FrontendOverhead/0.004-1) > 1e-3 || math.Abs(own.PrefillTime(0, 1024)/(0.010001+0.01024)-1) > 1e-3 {
		t.Errorf("the profile is %+v", own)
	}
}

func TestOneRowOfMetadata(t *testing.T) {
	for metadata, want := range map[string]string{
		`{"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]}`:                                                       `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[0.5,0.5,0.5]}]}`,
		`{"inputs": [{"name": "x", "datatype": "INT8", "shape": [8, -1, 2]}, {"name": "y", "datatype": "BYTES", "shape": [-1]}]}`: `{"inputs":[{"name":"x","datatype":"INT8","shape":[1,1,2],"data":[1,1]},{"name":"y","datatype":"BYTES","shape":[1],"data":["text"]}]}`,
		`{"inputs": [{"name": "x", "datatype": "BF16", "shape": [-1]}]}`:                                                          `input "x" is BF16, which cannot be filled automatically: write a request with one item into a file and use --body`,
		`{"inputs": [{"name": "x", "datatype": "BOOL", "shape": []}]}`:                                                            `input "x" has no batch dimension: write a request with one item into a file and use --body`,
		`{"inputs": [{"name": "x", "datatype": "BOOL", "shape": [1, 99999999, 99999999, 99999999]}]}`:                             `input "x" has the shape [1 99999999 99999999 99999999], which is more than 16777216 elements per item: write a request with one item into a file and use --body`,
		`{"name": "x"}`: `the model metadata has no inputs: write a request with one item into a file and use --body`,
		`<html>`:        `the model metadata is not V2 JSON: invalid character '<' looking for beginning of value`,
	} {
		got, err := survey.OneRow([]byte(metadata))
		if err != nil {
			got = []byte(err.Error())
		}
		if string(got) != want {
			t.Errorf("of %s it is\n%s, want\n%s", metadata, got, want)
		}
	}
}

func TestBodiesAreRepeated(t *testing.T) {
	const wants = "its first dimension is the batch and must be 1"
	for _, c := range []struct {
		api        survey.API
		body, want string
	}{
		{
			survey.V2, `{"id":"7","inputs":[{"name":"x","shape":[1,2],"datatype":"FP64","data":[1.50,2]}]}`,
			`{"id":"7","inputs":[{"data":[1.50,2,1.50,2,1.50,2],"datatype":"FP64","name":"x","shape":[3,2]}]}`,
		},
		{
			survey.V2, `{"inputs":[{"shape":[1,2],"data":[[1,2]]},{"shape":[1],"data":["é"]}]}`,
			`{"inputs":[{"data":[[1,2],[1,2],[1,2]],"shape":[3,2]},{"data":["é","é","é"],"shape":[3]}]}`,
		},
		{survey.V2, `{"inputs":[{"name":"x","shape":[4,2],"data":[1]}]}`, `input "x" of the body has the shape [4,2]: ` + wants},
		{survey.V2, `{"inputs":[{"name":"x","data":[1]}]}`, `input "x" of the body has the shape : ` + wants},
		{
			survey.V2, `{"inputs":[{"name":"x","shape":[1],"parameters":{"binary_data_size":4}}]}`,
			`input "x" of the body has no list as data, so it cannot be repeated`,
		},
		{survey.V2, `{"inputs":[]}`, `"inputs" of the body is no list of tensors`},
		{survey.V2, `{"input":"x"}`, `the body has no "inputs"`},
		{survey.Embeddings, `{"model":"m","input":"x"}`, `{"input":["x","x","x"],"model":"m"}`},
		{survey.Embeddings, `{"input":["x"]}`, `{"input":["x","x","x"]}`},
		{survey.Embeddings, `{"input":[1,2]}`, `{"input":[[1,2],[1,2],[1,2]]}`},
		{survey.Embeddings, `{"input":[[1,2]]}`, `{"input":[[1,2],[1,2],[1,2]]}`},
		{survey.Embeddings, `{"input":["x","y"]}`, `"input" of the body has 2 texts: write one, which is repeated`},
		{survey.Embeddings, `{"input":{}}`, `"input" of the body is no text and no list`},
		{survey.Embeddings, `{"input":[]}`, `"input" of the body is no text and no list`},
		{survey.Embeddings, `{"inputs":["x"]}`, `the body has no "input"`},
		{
			survey.Embeddings, `[]`,
			`the body is not a JSON object: json: cannot unmarshal array into Go value of type map[string]json.RawMessage`,
		},
	} {
		got, err := survey.Repeat(c.api, []byte(c.body), 3)
		if err != nil {
			got = []byte(err.Error())
		}
		if string(got) != c.want {
			t.Errorf("%s three times is\n%s, want\n%s", c.body, got, c.want)
		}
	}
}

// Chunks without a token are ignored, whether or not the engine counts tokens.
func TestTokensOfStreams(t *testing.T) {
	for name, c := range map[string]struct {
		lines []string
		want  survey.Stream
	}{
		"counted here": {
			[]string{
				`data: {"choices":[{"text":" a"}]}`, "", ": keep-alive", `data: {"choices":[{"text":" b"}]}`,
				`data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}`, "data: [DONE]",
			},
			survey.Stream{At: []float64{0, 3}, Tokens: []int{1, 2}, Prompt: 7, Answer: 2},
		},
		"counted there, two at once": {
			[]string{
				`data: {"choices":[{"text":" a"}],"usage":{"prompt_tokens":7,"completion_tokens":2}}`,
				`data:{"choices":[{"text":""}],"usage":{"prompt_tokens":7,"completion_tokens":3}}`, "data: [DONE]",
			},
			survey.Stream{At: []float64{0, 1}, Tokens: []int{2, 3}, Prompt: 7},
		},
		"chat begins with a role": {
			[]string{
				`data: {"choices":[{"delta":{"role":"assistant","content":""}}]}`, `data: {"choices":[{"delta":{"content":"a"}}]}`,
				`data: {"choices":[{"delta":{"reasoning_content":"b"}}]}`, "data: [DONE]",
			},
			survey.Stream{At: []float64{1, 2}, Tokens: []int{1, 2}},
		},
	} {
		var got survey.Stream
		for i, line := range c.lines {
			if last := got.Take([]byte(line+"\r\n"), float64(i)); last != (i == len(c.lines)-1) {
				t.Errorf("%s: line %d ends the stream: %v", name, i, last)
			}
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: it is %+v, want %+v", name, got, c.want)
		}
	}
}

// even creates a stream with a constant number of seconds (each) between tokens. The first token
// arrives at the time from.
func even(from, each float64, tokens, prompt int) (s survey.Stream) {
	for i := range tokens {
		s.At, s.Tokens = append(s.At, from+each*float64(i)), append(s.Tokens, i+1)
	}
	s.Prompt, s.Answer = prompt, tokens
	return s
}

func TestStepsTogether(t *testing.T) {
	at := survey.Point{Batch: 2, Asked: 10, Outputs: 16}
	late := even(5, 1, 16, 12)
	early := even(0, 1, 16, 10) // the early stream has short steps until the late one begins
	for i := range 5 {
		early.At[i] = 5 - 0.25*float64(5-i)
	}
	pairs := even(5, 2, 8, 12) // two tokens in each of 8 chunks; the engine reports 16 tokens
	pairs.Answer = 16
	for name, c := range map[string]struct {
		streams []survey.Stream
		want    float64 // step time in seconds; 0 if the streams did not run together
		kv      int
	}{
		"what is not together does not count": {[]survey.Stream{early, late}, 1, 10 + 8 + 12 + 8},
		"chunks of several tokens":            {[]survey.Stream{pairs, late}, 1, 12 + 8 + 12 + 8},
		"one begins when the other has ended": {[]survey.Stream{even(0, 1, 16, 10), even(16, 1, 16, 10)}, 0, 36},
		"a few steps together":                {[]survey.Stream{even(0, 1, 16, 10), even(13, 1, 16, 10)}, 0, 36},
	} {
		row, ok := survey.Together(at, c.streams)
		if ok != (c.want > 0) || math.Abs(row.Seconds-c.want) > 1e-9 || row.KV != c.kv || row.Point != at {
			t.Errorf("%s: %v, %+v, want %v s and %d tokens", name, ok, row, c.want, c.kv)
		}
	}
}

// The cost of a prompt is the delay of the other requests' tokens, even if some of the delayed
// tokens arrive after the prompt's first token.
func TestPromptCostsToOthers(t *testing.T) {
	at := survey.Point{Batch: 1, Asked: 10, Outputs: 16, Beside: 2}
	// delayed creates a stream with a token every second. The tokens at position index and later
	// arrive late, by the seconds in by.
	delayed := func(from float64, index int, by float64) survey.Stream {
		s := even(from, 1, 16, 10)
		for i := index; i < len(s.At); i++ {
			s.At[i] += by
		}
		return s
	}
	for name, c := range map[string]struct {
		streams []survey.Stream
		sent    float64
		first   float64
		want    float64 // seconds of the step with the prompt; 0 if the streams are too short
	}{
		"in the step with the first token": {[]survey.Stream{delayed(0, 6, 3), delayed(0.1, 6, 3)}, 4.5, 9.05, 4},
		"in the step before":               {[]survey.Stream{delayed(0, 6, 3), delayed(0.1, 6, 3)}, 4.5, 10.05, 4},
		"it costs nothing":                 {[]survey.Stream{even(0, 1, 16, 10), even(0.1, 1, 16, 10)}, 4.5, 6.05, 1},
		"answers end before":               {[]survey.Stream{even(0, 1, 16, 10), even(0.1, 1, 16, 10)}, 4.5, 14.2, 0},
		"answers have hardly begun":        {[]survey.Stream{even(0, 1, 16, 10), even(0.1, 1, 16, 10)}, 0.5, 4.2, 0},
	} {
		row, ok := survey.Mixed(at, c.streams, 12, c.sent, c.first)
		if ok != (c.want > 0) {
			t.Errorf("%s: it is measured: %v", name, ok)
		}
		if ok && (math.Abs(row.Seconds-c.want) > 1e-9 || math.Abs(row.Step-1) > 1e-9 || row.FirstToken != c.first-c.sent ||
			row.Prompt != 12 || row.Point != at) {
			t.Errorf("%s: %+v, want %v s", name, row, c.want)
		}
	}
}

// Prompts are measured alone, several at once, and beside the smallest and the largest concurrency
// that leaves room for the prompt. Combinations that exceed the token budget of one step are left
// out.
func TestPointsOfAnLLM(t *testing.T) {
	inputs := survey.Inputs([]int{16, 512, 2048}, 2048)
	plan := survey.OfLLM(inputs, 512, 64, []int{1, 4, 16}, profile.Limits{MaxSequences: 16, MaxBatchedTokens: 2048}, rule)
	var got []string
	for _, at := range plan.Points {
		got = append(got, at.String())
	}
	want := []string{
		"prompts of 16", "prompts of 512", "prompts of 1920",
		"steps of 1 with prompts of 16", "steps of 1 with prompts of 512", "steps of 4 with prompts of 16",
		"steps of 4 with prompts of 512",
		"steps of 16 with prompts of 16", "steps of 16 with prompts of 512",
		"prompts of 16 beside 1", "prompts of 512 beside 1", "prompts of 1920 beside 1", "prompts of 16 beside 4",
		"prompts of 512 beside 4", "prompts of 1920 beside 4",
		"4 prompts of 16 at once", "4 prompts of 512 at once",
	}
	if !slices.Equal(got, want) {
		t.Errorf("it measures %q, want %q", got, want)
	}
}

func TestIntake(t *testing.T) {
	counted := func(n, queue, prefill float64) engine.Totals {
		return engine.Totals{
			Queue:   engine.Timed{Count: engine.Known(n), Seconds: engine.Known(queue)},
			Prefill: engine.Timed{Count: engine.Known(n), Seconds: engine.Known(prefill)},
		}
	}
	for _, c := range []struct {
		before, after engine.Totals
		want          float64
	}{
		{counted(3, 1, 2), counted(4, 1.25, 2.5), 0.25},
		{counted(3, 1, 2), counted(5, 1.25, 2.5), 0}, // a second request ended between the scrapes
		{counted(3, 1, 2), counted(3, 1, 2), 0},
		{counted(3, 1, 2), counted(4, 2, 4), 0},
		{engine.Totals{}, engine.Totals{}, 0},
	} {
		if got := survey.FrontendOverhead(1, c.before, c.after); got != c.want {
			t.Errorf("between %+v and %+v it is %v, want %v", c.before, c.after, got, c.want)
		}
	}
}

func TestLimits(t *testing.T) {
	assumed := profile.Limits{MaxSequences: 256, MaxBatchedTokens: 8192, KVBlocks: 16384, BlockSize: 16}
	page := []byte("vllm:num_requests_running 0\nvllm:cache_config_info{block_size=\"128\",num_gpu_blocks=\"700\"} 1\n")
	for _, c := range []struct {
		said  profile.Limits
		page  []byte
		want  profile.Limits
		words string
	}{
		{profile.Limits{}, nil, assumed, "Assumed: maxSequences, maxBatchedTokens, kvBlocks and blockSize."},
		{
			profile.Limits{MaxSequences: 4},
			page,
			profile.Limits{MaxSequences: 4, MaxBatchedTokens: 8192, KVBlocks: 700, BlockSize: 128},
			"The engine reports kvBlocks and blockSize. Assumed: maxBatchedTokens.",
		},
		{
			profile.Limits{MaxSequences: 1, MaxBatchedTokens: 2, KVBlocks: 3, BlockSize: 4},
			page,
			profile.Limits{MaxSequences: 1, MaxBatchedTokens: 2, KVBlocks: 3, BlockSize: 4},
			"",
		},
		{profile.Limits{}, []byte("<html>"), assumed, "Assumed: maxSequences, maxBatchedTokens, kvBlocks and blockSize."},
	} {
		if got, words := survey.Limits(c.said, c.page, assumed); got != c.want || words != c.words {
			t.Errorf("they are %+v, want %+v: %s", got, c.want, words)
		}
	}
}

// A prompt has as many tokens as requested, for any ratio of tokens per word.
func TestWords(t *testing.T) {
	for _, is := range []survey.Tokenizer{
		{Fixed: 0, PerWord: 1},
		{Fixed: 4, PerWord: 1},
		{Fixed: 1, PerWord: 1.25},
		{Fixed: 0, PerWord: 2},
	} {
		tokens := func(words int) int { return int(math.Round(is.Fixed + is.PerWord*float64(words))) }
		found := survey.TokenizerOf(tokens(survey.ShortWords), tokens(survey.LongWords))
		for _, want := range []int{16, 128, 2048} {
			if got := tokens(found.Words(want)); math.Abs(float64(got-want)) > 1 {
				t.Errorf("%+v: %d tokens come, want %d", is, got, want)
			}
		}
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test's
	if text := survey.Text(random, 9); len(strings.Fields(text)) != 9 || text == survey.Text(random, 9) {
		t.Errorf("nine words are %q, twice", text)
	}
}

func TestHowFarASurveyIs(t *testing.T) {
	plan := survey.OfBatches([]int{1, 2, 4}, survey.Rule{Precision: 0.03, Least: 10, Most: 100, Limit: 50})
	var rows []survey.Row
	add := func(batch, n int) {
		for range n {
			rows = append(rows, survey.Row{Point: survey.Point{Batch: batch}, Seconds: 2})
		}
	}
	for _, c := range []struct {
		batch, n, done int
		left           float64
	}{{1, 0, 0, 0}, {1, 4, 0, 12 + 20 + 20}, {1, 6, 1, 20 + 20}, {2, 9, 1, 2 + 20}, {2, 1, 2, 20}, {4, 10, 3, 0}} {
		add(c.batch, c.n)
		if done, left := plan.Done(rows), plan.Left(rows, 0); done != c.done || math.Abs(left-c.left) > 1e-9 {
			t.Errorf("after %d more of %d: %d are done and %v s are left, want %d and %v", c.n, c.batch, done, left, c.done, c.left)
		}
	}
	p := survey.Progress{Done: 1, Points: 4, At: survey.Point{Batch: 8}, Summary: survey.Summarize([]float64{0.01, 0.012, 0.011}), Left: 75}
	if got, want := p.Line(), "[##........] 1/4  batches of 8, 3 times: 11ms ±22.6 %, 1m15s left"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}

func TestTooFewPoints(t *testing.T) {
	if _, err := (survey.Plan{}).LLM("", ofLLM, nil, profile.Limits{}, nil); !errors.Is(err, fit.ErrFewPrompts) {
		t.Errorf("the fault is %v", err)
	}
}
