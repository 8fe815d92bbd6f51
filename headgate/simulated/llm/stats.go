package llm

import (
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/sim"
)

// stats has vLLM's request counters. Only the driver uses it.
type stats struct {
	promptTokens, cachedTokens, generationTokens uint64
	finished                                     map[string]uint64 // number of finished requests by reason
	rejections                                   uint64
	// loraInfo has, for each set of adapters joined with commas, the value of
	// vllm:lora_requests_info: the Unix time of the last step in which exactly these adapters had
	// requests. As in vLLM, sets are never removed.
	loraInfo map[string]float64

	stepPrompt, stepOutput int // tokens of the step whose results are being delivered

	iterationTokens, promptLength, outputLength, maxTokens, choices, preemptions, computed histogram
	firstToken, interToken, perToken, e2e, queue, inference, prefill, decode               histogram
}

// finishReasons are the finish reasons in vLLM's counters, in vLLM's order.
var finishReasons = []string{"stop", "length", "abort", "error", "repetition"}

// Buckets of vLLM's histograms, as recorded.
var (
	firstTokenBounds = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	perTokenBounds   = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestBounds    = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	iterationBounds  = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	choiceBounds     = []float64{1, 2, 5, 10, 20}
	preemptionBounds = []float64{1, 2, 3, 4, 5, 10, 20}
)

func newStats(c Config) *stats {
	lengths := lengthBounds(c.MaxModelLen)
	s := &stats{finished: map[string]uint64{}, loraInfo: map[string]float64{}}
	for bounds, histograms := range map[*[]float64][]*histogram{
		&lengths:          {&s.promptLength, &s.outputLength, &s.maxTokens, &s.computed},
		&iterationBounds:  {&s.iterationTokens},
		&choiceBounds:     {&s.choices},
		&preemptionBounds: {&s.preemptions},
		&firstTokenBounds: {&s.firstToken},
		&perTokenBounds:   {&s.interToken, &s.perToken},
		&requestBounds:    {&s.e2e, &s.queue, &s.inference, &s.prefill, &s.decode},
	} {
		for _, h := range histograms {
			*h = newHistogram(*bounds)
		}
	}
	return s
}

// lengthBounds returns the bucket bounds 1, 2, 5, 10, 20, 50 and so on, up to the longest request.
func lengthBounds(longest int) []float64 {
	var bounds []float64
	for decade := 1; ; decade *= 10 {
		for _, m := range []int{1, 2, 5} {
			if m*decade > longest {
				return bounds
			}
			bounds = append(bounds, float64(m*decade))
		}
	}
}

// token counts an output token.
func (s *stats) token(t *ticket, e sim.Event) {
	if !t.pools {
		s.generationTokens++
	}
	s.stepOutput++
	if e.Index == 0 {
		s.promptTokens += uint64(len(t.request.Prompt))
		s.cachedTokens += uint64(t.cached)
		s.stepPrompt += len(t.request.Prompt)
		s.firstToken.observe(e.At - t.arrived)
	} else {
		s.interToken.observe(e.At - t.latest)
	}
	t.latest = e.At
}

// finish counts a successful request.
func (s *stats) finish(t *ticket, r sim.Record) {
	reason := "length"
	if t.stops {
		reason = "stop"
	}
	s.finished[reason]++
	prompt, output := len(t.request.Prompt), len(t.request.Output)
	s.promptLength.observe(float64(prompt))
	s.outputLength.observe(float64(output))
	s.maxTokens.observe(float64(t.maxTokens))
	s.choices.observe(1)
	s.preemptions.observe(float64(r.Preemptions))
	s.computed.observe(float64(prompt - r.Cached))
	s.e2e.observe(r.LastToken - r.Arrived)
	s.queue.observe(r.Scheduled - r.Arrived)
	s.inference.observe(r.LastToken - r.Scheduled)
	s.prefill.observe(r.FirstToken - r.Scheduled)
	decode := r.LastToken - r.FirstToken
	s.decode.observe(decode)
	s.perToken.observe(decode / float64(max(1, output-1)))
}

// step counts the end of a step. active are the adapters of running requests.
func (s *stats) step(active []string) {
	s.iterationTokens.observe(float64(s.stepPrompt + s.stepOutput))
	s.stepPrompt, s.stepOutput = 0, 0
	set := ""
	if len(active) > 0 {
		set = strings.Join(active, ",")
	}
	s.loraInfo[set] = float64(time.Now().UnixNano()) / 1e9
}

// histogram counts values by bucket.
type histogram struct {
	bounds []float64
	counts []uint64 // for each bucket, not cumulative; the last bucket is above all bounds
	sum    float64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	h.counts[sort.SearchFloat64s(h.bounds, v)]++
	h.sum += v
}

// traffic counts HTTP requests by path and status.
type traffic struct {
	mu     sync.Mutex // guards counts
	counts map[exchange]uint64
}

type exchange struct {
	path   string // a path that the engine serves, or "other"
	status int    // 0 if the request had no answer
}

func newTraffic() *traffic { return &traffic{counts: map[exchange]uint64{}} }

func (t *traffic) count(e exchange) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[e]++
}

// each calls f for every path and status with its count, in sorted order.
func (t *traffic) each(f func(exchange, uint64)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := make([]exchange, 0, len(t.counts))
	for e := range t.counts {
		keys = append(keys, e)
	}
	sort.Slice(keys, func(i, j int) bool {
		if keys[i].path != keys[j].path {
			return keys[i].path < keys[j].path
		}
		return keys[i].status < keys[j].status
	})
	for _, e := range keys {
		f(e, t.counts[e])
	}
}
