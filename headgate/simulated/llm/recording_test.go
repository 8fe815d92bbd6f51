package llm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
)

const recordings = "../../../bench/testdata/vllm-0.32/"

// difference is an aspect in which the simulated answer to a recorded request differs from that of
// vLLM 0.32.0.
type difference struct{ file, name, aspect, why string }

// differences lists all differences from the recordings. The test fails if a difference is not
// listed, or if a listed one no longer exists.
//
// The test does not compare generated texts, ids, times, or the headers date, server, vary and
// content-length.
var differences = []difference{
	{"err", "prompt too long", "body", tokensAreShort},
	{"err", "prompt too long, stream", "body", tokensAreShort},

	{"paths", "POST /v1/embeddings", "status", everyTask},
	{"paths", "POST /rerank", "status", everyTask},
	{"paths", "POST /v1/rerank", "status", everyTask},
	{"paths", "POST /score", "status", everyTask},
	{"paths", "POST /v1/score", "status", everyTask},
	{"paths", "POST /pooling", "status", everyTask},
	{"paths", "POST /classify", "status", everyTask},
	{"paths", "POST /v1/audio/transcriptions", "status", everyTask},

	{"paths", "GET /v1/responses/none", "body", "responses are not stored, so none can be asked for"},
	{"paths", "GET /kv_event_sources", "status", noInference},
	{"paths", "POST /v1/systemone", "status", noInference},
	{"paths", "POST /generative_scoring", "status", noInference},
	{"paths", "POST /scale_elastic_ep", "status", noInference},
	{"paths", "POST /is_scaling_elastic_ep", "status", noInference},
	{"paths", "POST /v1/chat/completions/render", "status", noScaleOut},
	{"paths", "POST /v1/completions/render", "status", noScaleOut},
	{"paths", "POST /inference/v1/generate", "status", noScaleOut},
	{"paths", "POST /inference/v1/abort_requests", "status", noScaleOut},

	{"flags", "render (--enable-scale-out)", "status", noScaleOut},
	{"flags", "render completions", "status", noScaleOut},
	{"flags", "generate", "status", noScaleOut},
	{"flags", "stream usage with --enable-prompt-tokens-details", "body", "there is no such flag here"},
	{"flags", "GET /server_info", "status", noDevelopment},
	{"flags", "GET /weight_info", "status", noDevelopment},
	{"flags", "GET /get_world_size", "status", noDevelopment},
	{"flags", "GET /is_paused", "status", noDevelopment},
	{"flags", "pause", "status", noDevelopment},
	{"flags", "is_paused", "status", noDevelopment},
	{"flags", "resume", "status", noDevelopment},
}

// Reasons that several differences share.
const (
	tokensAreShort = "a token has at most 4 bytes here, so other lengths are too long; the template has no text"
	everyTask      = "embeddings, rerank, score, pooling, classify and audio are served beside chat; the recorded model could only chat"
	noInference    = "no gateway sends anything there: 404, as for every path that is not served"
	noScaleOut     = "the scale-out endpoints do not exist here, enabled or not"
	noDevelopment  = "of vLLM's development endpoints there is sleep alone"
)

// recorded is one request and response of a recording.
type recorded struct {
	file, name         string
	method, path, body string
	requestHeader      map[string]string
	status             int
	header             map[string]string // nil if it was not recorded
	answer             string
	cut                bool // true if the recording has only the beginning of the answer
}

// longPrompt is a request body that the recording omits because of its length.
var longPrompt = `{"model": "tiny", "messages": [{"role": "user", "content": "` + strings.Repeat("the quick brown fox ", 1200) + `"}]`

var requestsLeftOut = map[string]string{
	"prompt too long":         longPrompt + `}`,
	"prompt too long, stream": longPrompt + `, "stream": true}`,
}

func readRecording(t *testing.T, file string) []recorded {
	t.Helper()
	text, err := os.ReadFile(recordings + file + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []recorded
	seen := map[string]int{}
	for _, part := range strings.Split("\n"+string(text), "\n### ")[1:] {
		name, rest, _ := strings.Cut(part, "\n")
		if seen[name]++; seen[name] > 1 {
			name = fmt.Sprintf("%s #%d", name, seen[name])
		}
		r := recorded{file: file, name: name}
		lines := strings.Split(rest, "\n")
		r.request(t, strings.TrimPrefix(lines[0], "> "))
		if _, err := fmt.Sscanf(lines[1], "< %d ", &r.status); err != nil {
			t.Fatalf("%s: %q: %v", name, lines[1], err)
		}
		lines = lines[2:]
		for ; len(lines) > 0 && strings.HasPrefix(lines[0], "< "); lines = lines[1:] {
			key, value, _ := strings.Cut(strings.TrimPrefix(lines[0], "< "), ": ")
			if r.header == nil {
				r.header = map[string]string{}
			}
			r.header[key] = value
		}
		// A body is one line or a stream of events. Other lines are remarks by the person who
		// recorded it.
		if len(lines) > 0 && strings.HasPrefix(lines[0], "data: ") {
			r.answer = strings.Join(lines, "\n")
		} else if len(lines) > 0 {
			r.answer = lines[0]
		}
		r.cut = strings.HasSuffix(strings.TrimSpace(r.answer), "…[cut]")
		all = append(all, r)
	}
	return all
}

// request parses the line of a request: method, path, optional headers in the form H:{...}, and
// body.
func (r *recorded) request(t *testing.T, line string) {
	t.Helper()
	r.method, line, _ = strings.Cut(line, " ")
	r.path, line, _ = strings.Cut(line, " ")
	if rest, ok := strings.CutPrefix(line, "H:"); ok {
		d := json.NewDecoder(strings.NewReader(rest))
		if err := d.Decode(&r.requestHeader); err != nil {
			t.Fatalf("%s: %v", r.name, err)
		}
		line = strings.TrimPrefix(rest[d.InputOffset():], " ")
	}
	r.body = line
	if whole, ok := requestsLeftOut[r.name]; ok {
		r.body = whole
	} else if strings.HasSuffix(line, "…") {
		t.Fatalf("%s: the request is not whole", r.name)
	}
}

// recordedServer returns the configuration of the recorded server. The script real-vllm has the
// flags with which it served.
func recordedServer(models string) Config {
	p := slow()
	p.Limits.BlockSize = 128
	c := Config{Profile: p, Model: "./tiny", ServedNames: []string{"tiny"}, MaxModelLen: 1024, MaxLoRARank: 8}
	for i := range 5 {
		name := fmt.Sprintf("a%d", i+1)
		c.Adapters = append(c.Adapters, Adapter{Name: name, Path: models + "/lora/" + name})
	}
	return c
}

// makeModels creates the directories that the recordings name: the base model and five adapters.
// The rank of one adapter is too high.
func makeModels(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "models")
	write := func(path, text string) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		write(filepath.Join(root, "lora", fmt.Sprintf("a%d", i+1), "adapter_config.json"), `{"peft_type": "LORA", "r": 4}`)
	}
	write(filepath.Join(root, "lora", "big", "adapter_config.json"), `{"peft_type": "LORA", "r": 16}`)
	write(filepath.Join(root, "tiny", "config.json"), `{}`)
	return root
}

func TestRecordedVLLMAnswersTheSame(t *testing.T) {
	var found []difference
	for _, file := range []string{"chat", "err", "paths", "lora", "flags"} {
		t.Run(file, func(t *testing.T) {
			models := makeModels(t)
			c := recordedServer(models)
			switch file {
			case "lora":
				c.Adapters = nil
			case "flags":
				c.RequestIDHeaders, c.SleepMode, c.MaxQueued = true, true, 20
			}
			inWorld(t, c, func(w *world) {
				queueRequests, leave := context.WithCancel(context.Background())
				defer leave()
				for _, r := range readRecording(t, file) {
					switch r.name {
					case "/load with --enable-server-load-tracking and 20 in flight":
						w.queueRequests(queueRequests, 20) // the recorded engine slept, so requests wait
					case "/load after":
						leave()
						synctest.Wait()
					}
					found = append(found, w.compare(r, models)...)
				}
			})
		})
	}
	for _, d := range differences {
		if d.why == "" {
			t.Errorf("%+v has no reason", d)
		}
	}
	same := func(a, b difference) bool { return a.file == b.file && a.name == b.name && a.aspect == b.aspect }
	for _, d := range found {
		if !slices.ContainsFunc(differences, func(known difference) bool { return same(known, d) }) {
			t.Errorf("differs: {%q, %q, %q, \"\"}: %s", d.file, d.name, d.aspect, d.why)
		}
	}
	for _, d := range differences {
		if !slices.ContainsFunc(found, func(f difference) bool { return same(f, d) }) {
			t.Errorf("no difference any more: %+v", d)
		}
	}
}

// queueRequests sends n requests, which all wait in the queue.
func (w *world) queueRequests(ctx context.Context, n int) {
	for range n {
		go func() {
			if resp, err := w.send(ctx, "POST /v1/completions", `{"prompt":"x","max_tokens":5}`); err == nil {
				w.close(resp)
			}
		}()
	}
	synctest.Wait()
}

// compare replays a recorded request and returns the differences. The reason of each contains the
// recorded and the simulated value.
func (w *world) compare(r recorded, models string) (found []difference) {
	differs := func(aspect, was, is string) {
		if was != is {
			found = append(found, difference{r.file, r.name, aspect, fmt.Sprintf("\n  was %s\n  is  %s", was, is)})
		}
	}
	root := strings.TrimSuffix(models, "/models")
	var headers []string
	for key, value := range r.requestHeader {
		headers = append(headers, key, value)
	}
	if r.body == "" && r.method == http.MethodPost {
		headers = append(headers, "content-type", "application/json")
	}
	a := w.do(r.method+" "+r.path, strings.ReplaceAll(r.body, `"/models/`, `"`+root+"/models/"), headers...)
	a.body = strings.ReplaceAll(a.body, models+"/tiny", "<path>")
	a.body = strings.ReplaceAll(a.body, root, "")

	if a.status != r.status {
		differs("status", strconv.Itoa(r.status), strconv.Itoa(a.status))
		return found
	}
	if r.header != nil {
		for _, key := range []string{"content-type", "allow"} {
			differs("header "+key, r.header[key], a.header.Get(key))
		}
		differs("header endpoint-load-metrics", anyNumber(r.header["endpoint-load-metrics"]),
			anyNumber(a.header.Get("endpoint-load-metrics")))
		differs("header x-request-id", anyID(r.header["x-request-id"]), anyID(a.header.Get("x-request-id")))
		differs("header transfer-encoding", r.header["transfer-encoding"], strings.Join(a.chunks, ","))
	}
	if !r.cut {
		differs("body", bodyShape(r.answer), bodyShape(a.body))
	}
	return found
}

var (
	numbers = regexp.MustCompile(`\d+(\.\d+)?(e-\d+)?`)
	ids     = regexp.MustCompile(`^[0-9a-f]{32}$`)
)

func anyNumber(text string) string { return numbers.ReplaceAllString(text, "N") }
func anyID(text string) string     { return ids.ReplaceAllString(text, "ID") }

// bodyShape returns the part of a body that must match the recording: all of an error or plain
// text, otherwise the shape of the JSON. In a stream it merges consecutive chunks of the same
// shape.
func bodyShape(body string) string {
	body = strings.TrimSpace(body)
	if strings.HasPrefix(body, "data: ") {
		var shapes []string
		for line := range strings.SplitSeq(body, "\n") {
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				shapes = append(shapes, bodyShape(data))
			}
		}
		return strings.Join(slices.Compact(shapes), "\n      ")
	}
	var v any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		return body
	}
	if o, ok := v.(map[string]any); ok && (o["error"] != nil || o["detail"] != nil) {
		return body
	}
	return shape(v)
}

// shape returns the keys and types of a JSON value. For an array it returns the types of elements.
func shape(v any) string {
	switch v := v.(type) {
	case map[string]any:
		var b bytes.Buffer
		b.WriteString("{")
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		for _, k := range keys {
			fmt.Fprintf(&b, "%s:%s ", k, shape(v[k]))
		}
		return strings.TrimSpace(b.String()) + "}"
	case []any:
		var shapes []string
		for _, e := range v {
			shapes = append(shapes, shape(e))
		}
		slices.Sort(shapes)
		return "[" + strings.Join(slices.Compact(shapes), "|") + "]"
	case string:
		return "string"
	case float64:
		return "number"
	case bool:
		return "bool"
	}
	return "null"
}
