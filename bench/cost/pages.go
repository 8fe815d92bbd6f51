package cost

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// moved returns the page of metrics that an engine serves later. On a busy engine some requests
// run, and by more of them have ended since: the counters that are not zero have risen, and so have
// all histograms. On an idle engine only the counters of the process itself have risen. No request
// waits, so that an extproc does not avoid the engine.
func moved(page []byte, by int, busy bool) []byte {
	var b bytes.Buffer
	for line := range bytes.Lines(page) {
		at := bytes.LastIndexByte(line, ' ')
		name := string(line[:max(bytes.IndexAny(line, "{ "), 0)])
		value, err := strconv.ParseFloat(string(bytes.TrimSpace(line[max(at, 0):])), 64)
		if at < 0 || line[0] == '#' || err != nil {
			b.Write(line)
			continue
		}
		set := func(value float64, digits int) {
			fmt.Fprintf(&b, "%s %s\n", line[:at], strconv.FormatFloat(value, 'f', digits, 64))
		}
		serves := strings.HasPrefix(name, "vllm:") // the series is about requests
		switch {
		case strings.HasPrefix(name, "vllm:num_requests_waiting"):
			set(0, 1)
		case name == "vllm:num_requests_running" && busy:
			set(running, 1)
		case name == "vllm:num_requests_running":
			set(0, 1)
		case name == "vllm:kv_cache_usage_perc" && busy:
			set(value+float64(by)/1000, 4)
		case isCounter(name) && (value != 0 && (busy || !serves) || busy && serves && isHistogram(name)):
			set(value+float64(by), 1)
		default:
			b.Write(line)
		}
	}
	return b.Bytes()
}

// running is the number of requests on a busy engine, as on the recorded page.
const running = 8

// isCounter reports whether the values of a series rise while its process works.
func isCounter(name string) bool { return strings.HasSuffix(name, "_total") || isHistogram(name) }

// isHistogram reports whether a series is of a histogram.
func isHistogram(name string) bool {
	return strings.HasSuffix(name, "_bucket") || strings.HasSuffix(name, "_sum") || strings.HasSuffix(name, "_count")
}

// reduced returns the lines of a page that are about requests, the KV cache and adapters.
func reduced(page []byte) []byte {
	var b bytes.Buffer
	for line := range bytes.Lines(page) {
		for _, part := range []string{"vllm:num_requests_", "vllm:kv_cache_usage", "vllm:cache_config", "vllm:lora_requests"} {
			if bytes.Contains(line, []byte(part)) {
				b.Write(line)
			}
		}
	}
	return b.Bytes()
}
