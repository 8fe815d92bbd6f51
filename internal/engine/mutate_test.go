package engine_test

import (
	"bytes"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// counted is the lines that the mutations mostly change: those of families that count.
var counted = regexp.MustCompile(`^(# TYPE )?(sglang:|tgi_|nv_|trtllm|process_start|vllm:(num_requests|kv_cache|cache_config|` +
	`engine_sleep|lora_|iteration_tokens|prompt_tokens_(total|cached_total)|generation_tokens_total|` +
	`(inter_token_latency|request_queue_time)_seconds(_sum|_count| )))`)

// sample splits a sample line.
var sample = regexp.MustCompile(`^([a-zA-Z0-9_:]+)(\{.*\})? (\S+)\n$`)

var (
	oddValues = []string{
		"NaN", "+Inf", "-Inf", "-1", "-0", "0", "0.5", "5.", ".5", "1e3", "1E+03", "1e999", "0x1p3", "0x10", "1_0", "",
		"many", "1.5e-7", "9007199254740993", "18446744073709551616", "123456789012345678", "007", "+7", "infinity",
		"1 1795228442", "1 -5", "1  5", "1 5 6", "1 \t", "1 x", "1\r", "1 ", "\"1\"", "1 # {} 2", "1} 2",
	}
	oddLabels = []string{
		`a="b"`, `le="1"`, `le="x"`, `quantile="0.5"`, `engine="1"`, `engine="0"`, `reason="deferred"`, `priority=""`,
		`sleep_state="awake"`, `a="\"}{\\\n"`, `a="\x"`, `"a b"="c"`, `a="}"`, `a="é"`, "a=\"\xff\"", `__name__="x"`,
		`1a="b"`, `a=b`, `a="b`, ` a = "b" `, `,`, `model_name="m,2"`,
	}
	oddLines = []string{
		"\n", "#\n", "#x\n", "# HELP\n", "# TYPE\n", "# TYPE vllm:num_requests_running\n",
		"#\tTYPE vllm:num_requests_swapped gauge\n", " # TYPE  vllm:num_requests_swapped  counter\n",
		"# HELP vllm:num_requests_running \\x\n", "{\"vllm:num_requests_running\",engine=\"7\"} 2\n",
		"\"vllm:num_requests_running\" 2\n", "vllm:num\"_requests_running\" 2\n", "{} 1\n", "{ 1\n",
		"vllm:num_requests_swapped 4\n", "\tvllm:num_requests_swapped 4\n", "vllm:num_requests_running-3\n",
		"vllm:num_requests_running{}5\n", "vllm:num_requests_running {engine=\"1\"}\t5\n",
		"vllm:num_requests_running_count 5\n", "vllm:gpu_cache_usage_perc 0.25\n",
		"vllm:lora_requests_info{max_lora=\"3\",running_lora_adapters=\"x,y\",waiting_lora_adapters=\"z\"} 1.9e9\n",
		"lora_requests_info{max_lora=\"3\",running_lora_adapters=\"x\"} 1.9e9\n",
		"# TYPE vllm:lora_requests_info histogram\n", "num_requests_running 3\n",
		"vllm:cache_config_info{engine=\"1\",block_size=\"16\",num_gpu_blocks=\"10\",enable_prefix_caching=\"False\"} 1.0\n",
		"sglang:num_running_reqs 3\n", "# TYPE vllm:num_requests_swapped summary\n",
		"# TYPE vllm:num_requests_swapped histogram\n", "vllm:num_requests_swapped_sum 0.5\n",
		"vllm:num_requests_swapped_bucket{le=\"1\"} 2\n", "process_start_time_seconds 5\n",
		"vllm:iteration_tokens_total_bucket{le=\"2\",engine=\"9\"} 2\n", "{\"vllm:iteration_tokens_total_count\",a=\"b\"} 2\n",
	}
)

// mutatePage changes lines of a page at random, mostly such that count.
func mutatePage(rng *rand.Rand, page []byte) []byte {
	if rng.IntN(50) == 0 {
		return page[:rng.IntN(len(page)+1)] // cut in the middle
	}
	if rng.IntN(200) == 0 {
		return bytes.ReplaceAll(page, []byte("\n"), []byte("\r\n"))
	}
	all := bytes.SplitAfter(page, []byte("\n"))
	i, j := chosen(rng, all), chosen(rng, all)
	switch rng.IntN(12) {
	case 0:
		all = slices.Delete(all, i, i+1)
	case 1:
		all = slices.Insert(all, j, all[i])
	case 2:
		all[i], all[j] = all[j], all[i]
	case 3:
		all = slices.Insert(all, j, []byte(oddLines[rng.IntN(len(oddLines))]))
	case 4, 5, 6, 7:
		all[i] = mutateValue(rng, all[i])
	case 8, 9:
		all[i] = mutateLabels(rng, all[i])
	case 10:
		all[i] = mutateName(rng, all[i])
	case 11:
		all[i] = scramble(rng, bytes.Clone(all[i]))
	}
	return bytes.Join(all, nil)
}

// chosen returns the index of a line, mostly of one that counts.
func chosen(rng *rand.Rand, all [][]byte) int {
	at := rng.IntN(len(all))
	for range 300 {
		if rng.IntN(100) == 0 || counted.Match(all[at]) {
			break
		}
		at = rng.IntN(len(all))
	}
	return at
}

func mutateValue(rng *rand.Rand, line []byte) []byte {
	m := sample.FindSubmatch(line)
	if m == nil {
		return line
	}
	value := strconv.FormatFloat(float64(rng.IntN(1000))/float64(1+3*rng.IntN(2)), 'g', -1, 64)
	switch rng.IntN(6) {
	case 0:
		value = oddValues[rng.IntN(len(oddValues))]
	case 1:
		value += ".0"
	}
	return slices.Concat(m[1], m[2], []byte(" "+value+"\n"))
}

func mutateLabels(rng *rand.Rand, line []byte) []byte {
	m := sample.FindSubmatch(line)
	if m == nil {
		return line
	}
	labels := bytes.Split(bytes.Trim(m[2], "{}"), []byte(`",`))
	for i := range labels[:len(labels)-1] {
		labels[i] = append(bytes.Clone(labels[i]), '"')
	}
	switch rng.IntN(4) {
	case 0:
		rng.Shuffle(len(labels), func(i, j int) { labels[i], labels[j] = labels[j], labels[i] })
	case 1:
		labels = slices.Delete(labels, 0, 1)
	case 2, 3:
		labels = slices.Insert(labels, rng.IntN(len(labels)+1), []byte(oddLabels[rng.IntN(len(oddLabels))]))
	}
	return slices.Concat(m[1], []byte("{"), bytes.Join(labels, []byte(",")), []byte("} "), m[3], []byte("\n"))
}

func mutateName(rng *rand.Rand, line []byte) []byte {
	end := bytes.IndexAny(line, "{ ")
	if end <= 0 {
		return line
	}
	name := line[:end]
	switch rng.IntN(4) {
	case 0:
		name = name[:end-1]
	case 1:
		name = slices.Concat(name, []byte{"_a:9 \"-"[rng.IntN(7)]})
	case 2:
		name = slices.Concat(name, []byte([]string{"_count", "_sum", "_bucket", "_total"}[rng.IntN(4)]))
	case 3:
		name = slices.Concat([]byte([]string{" ", "\t", "x", "# ", "# TYPE ", "{"}[rng.IntN(6)]), name)
	}
	return slices.Concat(name, line[end:])
}

// scramble changes, removes or adds a byte.
func scramble(rng *rand.Rand, line []byte) []byte {
	if len(line) == 0 {
		return line
	}
	at := rng.IntN(len(line))
	switch rng.IntN(3) {
	case 0:
		line[at] ^= 1 << rng.IntN(8)
	case 1:
		return slices.Delete(line, at, at+1)
	case 2:
		return slices.Insert(line, at, "{}\",\\ \t\n=#0.\xffa"[rng.IntN(14)])
	}
	return line
}

// rising is the names of series that rise while an engine serves.
var rising = regexp.MustCompile(`^vllm:.*(_total|_bucket|_sum|_count|num_requests_running)$|^http_.*(_bucket|_sum|_count)$`)

// moved returns a vLLM's page after more requests.
func moved(page []byte, by int) []byte {
	var b bytes.Buffer
	for line := range bytes.Lines(page) {
		m := sample.FindSubmatch(line)
		if m == nil || !rising.Match(m[1]) || string(m[3]) == "0.0" {
			b.Write(line)
			continue
		}
		value, _ := strconv.ParseFloat(string(m[3]), 64)
		text := strconv.FormatFloat(value+float64(by), 'f', -1, 64)
		if !strings.Contains(text, ".") {
			text += ".0"
		}
		b.Write(slices.Concat(m[1], m[2], []byte(" "+text+"\n")))
	}
	return b.Bytes()
}
