package llm

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/headgate/headgate/internal/sim"
)

// Requests that generate no text are prefills: the engine computes each prompt and one output
// token, which is not counted. Their answers are random numbers that depend on the prompt and the
// seed.

const (
	// dimensions is the default length of an embedding.
	dimensions = 16
	// audioBytes is the number of audio bytes for one prompt token. Whisper has 50 tokens per
	// second, and a second of 16 kHz 16-bit mono audio has 32,000 bytes.
	audioBytes = 640
)

// pool computes prompts in the engine. It returns the name of the model for the answer, and a
// random source for each prompt.
func (c *call) pool(model string, prompts []prompt) (name string, sources []*rand.PCG, f *failure) {
	name, adapter, f := c.s.resolve(model)
	if f != nil {
		return "", nil, f
	}
	var tickets []*ticket
	for _, p := range prompts {
		if n := len(p.tokens); n == 0 || n >= c.s.config.MaxModelLen {
			return "", nil, badValue("input_tokens", n, "This model's maximum context length is %d tokens. However, your input has %d tokens.",
				c.s.config.MaxModelLen, n)
		}
		s := newSpeech(c.s.config.Seed, name, p.tokens)
		tickets = append(tickets, &ticket{
			request: sim.Request{Adapter: adapter, Prompt: p.tokens, Output: s.tokens(1)}, pools: true, stops: true, maxTokens: 1,
		})
		sources = append(sources, s.words)
	}
	if f = c.submit(tickets...); f == nil {
		f = c.finish(tickets...)
	}
	return name, sources, f
}

// embeddings serves POST /v1/embeddings.
func (c *call) embeddings() *failure {
	a, inputs, f := c.askInputs()
	if f != nil {
		return f
	}
	if len(inputs) == 0 || a.dimensions < 0 || a.dimensions > 1<<16 || !encodes(a.encoding) {
		return bad("", "embeddings need an input, dimensions up to 65536 and the encoding float or base64")
	}
	if a.dimensions == 0 {
		a.dimensions = dimensions
	}
	return c.each("embd", a.model, inputs, func(b []byte, i int, source *rand.PCG) []byte {
		b = fmt.Appendf(b, `{"index":%d,"object":"embedding","embedding":`, i)
		return append(appendVector(b, vector(source, a.dimensions), a.encoding), '}')
	})
}

// encodes returns true if vectors can be sent in an encoding.
func encodes(encoding string) bool { return encoding == "float" || encoding == "base64" }

// pooling serves POST /pooling. It returns the output of the pooler for each input: here a vector.
func (c *call) pooling() *failure {
	a, inputs, f := c.askInputs()
	switch {
	case f != nil:
		return f
	case a.dimensions != 0:
		return badValue("dimensions", a.dimensions, "dimensions is currently not supported")
	case len(inputs) == 0 || !encodes(a.encoding):
		return bad("", "pooling needs an input, and the encoding float or base64")
	}
	return c.each("pooling", a.model, inputs, func(b []byte, i int, source *rand.PCG) []byte {
		b = fmt.Appendf(b, `{"index":%d,"object":"pooling","data":`, i)
		return append(appendVector(b, vector(source, dimensions), a.encoding), '}')
	})
}

// classify serves POST /classify. It assigns each input to one of two classes.
func (c *call) classify() *failure {
	a, inputs, f := c.askInputs()
	if f == nil && len(inputs) == 0 {
		f = bad("", "to classify needs an input")
	}
	if f != nil {
		return f
	}
	return c.each("classify", a.model, inputs, func(b []byte, i int, source *rand.PCG) []byte {
		first, label := rand.New(source).Float64(), "LABEL_0"
		if first < 0.5 {
			label = "LABEL_1"
		}
		return fmt.Appendf(b, `{"index":%d,"label":%s,"probs":[%s,%s],"num_classes":2}`, i, quote(label), number(first), number(1-first))
	})
}

// askInputs parses a request that generates no text. Its body has either a conversation, which is
// the only prompt, or a list of inputs.
func (c *call) askInputs() (a ask, inputs []prompt, f *failure) {
	if a, f = c.ask(); f != nil {
		return a, nil, f
	}
	if messages := a.values["messages"]; messages.Exists() {
		p, f := chatPrompt(gjson.Result{}, messages)
		return a, []prompt{p}, f
	}
	if !a.values["input"].Exists() {
		return a, nil, a.missing("input")
	}
	inputs, f = prompts("input", a.values["input"])
	return a, inputs, f
}

// each computes prompts in the engine and answers with a list that has one item for each prompt.
// The function item appends an item to b.
func (c *call) each(kind, model string, all []prompt, item func(b []byte, i int, source *rand.PCG) []byte) *failure {
	name, sources, f := c.pool(model, all)
	if f != nil {
		return f
	}
	b := fmt.Appendf(nil, `{"id":%s,"object":"list","created":%d,"model":%s,"data":[`, quote(kind+"-"+c.requestID()), unixNow(),
		quote(name))
	for i, source := range sources {
		if i > 0 {
			b = append(b, ',')
		}
		b = item(b, i, source)
	}
	return c.json(http.StatusOK, fmt.Appendf(b,
		`],"usage":{"prompt_tokens":%d,"total_tokens":%[1]d,"completion_tokens":0,"prompt_tokens_details":null}}`, length(all)))
}

// rerank serves POST /rerank. It orders documents by their relevance to a query.
func (c *call) rerank() *failure {
	a, f := c.ask("query", "documents")
	if f != nil {
		return f
	}
	pairs, f := pair(a.values["query"], a.values["documents"])
	if f != nil {
		return f
	}
	name, sources, f := c.pool(a.model, pairs)
	if f != nil {
		return f
	}
	order := make([]int, len(sources))
	scores := make([]float64, len(sources))
	for i, s := range sources {
		order[i], scores[i] = i, rand.New(s).Float64()
	}
	slices.SortStableFunc(order, func(i, j int) int {
		if scores[i] > scores[j] {
			return -1
		}
		return 1
	})
	documents := a.values["documents"].Array()
	b := fmt.Appendf(nil, `{"id":%s,"model":%s,"usage":{"prompt_tokens":%d,"total_tokens":%[3]d},"results":[`,
		quote("rerank-"+c.requestID()), quote(name), length(pairs))
	for n, i := range order {
		if n > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"index":%d,"document":{"text":%s,"multi_modal":null},"relevance_score":%s}`, i, quote(documents[i].Str),
			number(scores[i]))
	}
	return c.json(http.StatusOK, append(b, "]}"...))
}

// score serves POST /score. It returns the similarity of pairs of texts.
func (c *call) score() *failure {
	a, f := c.ask("text_1", "text_2")
	if f != nil {
		return f
	}
	pairs, f := pair(a.values["text_1"], a.values["text_2"])
	if f != nil {
		return f
	}
	return c.each("score", a.model, pairs, func(b []byte, i int, source *rand.PCG) []byte {
		return fmt.Appendf(b, `{"index":%d,"object":"score","score":%s}`, i, number(rand.New(source).Float64()))
	})
}

// pair returns a prompt for each pair of texts. left has either one text, which is paired with
// every text of right, or as many texts as right.
func pair(left, right gjson.Result) ([]prompt, *failure) {
	lefts, rights := texts(left), texts(right)
	if len(lefts) == 1 {
		lefts = slices.Repeat(lefts, len(rights))
	}
	if len(rights) == 0 || len(lefts) != len(rights) {
		return nil, bad("", "one text is compared with any number of texts, or as many with as many, got %d and %d", len(lefts),
			len(rights))
	}
	pairs := make([]prompt, len(rights))
	for i := range rights {
		pairs[i].add(lefts[i])
		pairs[i].add(" " + rights[i])
	}
	return pairs, nil
}

// texts parses a text, an object that contains a text, or a list of either.
func texts(v gjson.Result) []string {
	if !v.IsArray() {
		if v.IsObject() {
			v = v.Get("text")
		}
		return []string{v.Str}
	}
	var all []string
	v.ForEach(func(_, item gjson.Result) bool {
		all = append(all, texts(item)...)
		return true
	})
	return all
}

// length returns the total number of tokens of prompts.
func length(prompts []prompt) (n int) {
	for _, p := range prompts {
		n += len(p.tokens)
	}
	return n
}

// vector draws a random unit vector.
func vector(source *rand.PCG, n int) []float64 {
	r := rand.New(source)
	v, sum := make([]float64, n), 0.0
	for i := range v {
		v[i] = r.NormFloat64()
		sum += v[i] * v[i]
	}
	for i := range v {
		v[i] /= math.Sqrt(sum)
	}
	return v
}

// appendVector appends a vector as JSON numbers, or as base64 of little-endian 32-bit floats.
func appendVector(b []byte, v []float64, encoding string) []byte {
	if encoding == "base64" {
		var raw []byte
		for _, x := range v {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(x)))
		}
		return append(base64.StdEncoding.AppendEncode(append(b, '"'), raw), '"')
	}
	b = append(b, '[')
	for i, x := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendFloat(b, x, 'g', -1, 64)
	}
	return append(b, ']')
}

// audio serves POST /v1/audio/transcriptions and /v1/audio/translations. The form has a file and a
// model.
func (c *call) audio() *failure {
	if media, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type")); media != "multipart/form-data" {
		return malformed("missing", "body.file", "Field required", "None")
	}
	c.r.Body = http.MaxBytesReader(c.w, c.r.Body, maxBody)
	reader, err := c.r.MultipartReader()
	fields, size := map[string]string{}, int64(-1)
	for err == nil {
		var part *multipart.Part
		if part, err = reader.NextPart(); err != nil {
			break
		}
		if part.FormName() == "file" {
			size, err = io.Copy(io.Discard, part)
		} else {
			var value []byte
			value, err = io.ReadAll(io.LimitReader(part, 4096))
			fields[part.FormName()] = string(value)
		}
	}
	if !errors.Is(err, io.EOF) {
		return bad("", "the form cannot be read: %v", err)
	}
	if size < 0 {
		return malformed("missing", "body.file", "Field required", "None")
	}
	return c.transcribe(fields, int(size))
}

// transcribe returns text that matches the length of the audio: two words per second.
func (c *call) transcribe(fields map[string]string, size int) *failure {
	a := ask{n: 1, temperature: 1, model: fields["model"], maxTokens: 1 + size/audioBytes/25, maxTokensSet: true, complete: true}
	g, f := c.generate(a, 0, func() (prompt, *failure) {
		return prompt{tokens: slices.Repeat([]uint32{partOther}, 1+size/audioBytes)}, nil
	})
	if f == nil {
		f = c.finish(g.ticket)
	}
	if f != nil {
		return f
	}
	if fields["response_format"] == "text" {
		return c.respond(http.StatusOK, "text/plain; charset=utf-8", g.text(nil))
	}
	return c.json(http.StatusOK, fmt.Appendf(nil, `{"text":%s,"usage":{"type":"duration","seconds":%d}}`, quote(string(g.text(nil))), 1+
		size/audioBytes/50))
}

// tokenize serves POST /tokenize for a prompt or a conversation.
func (c *call) tokenize() *failure {
	a, f := c.ask()
	if f == nil {
		_, _, f = c.s.resolve(a.model)
	}
	var p prompt
	switch {
	case f != nil:
	case a.values["messages"].Exists():
		p, f = chatPrompt(gjson.Result{}, a.values["messages"])
	case a.values["prompt"].Exists():
		p.add(a.values["prompt"].Str)
	default:
		f = a.missing("prompt")
	}
	if f != nil {
		return f
	}
	b := fmt.Appendf(nil, `{"count":%d,"max_model_len":%d,"tokens":[`, len(p.tokens), c.s.config.MaxModelLen)
	for i, token := range p.tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(token), 10)
	}
	return c.json(http.StatusOK, append(b, `],"token_strs":null}`...))
}

// detokenize serves POST /detokenize. Role tokens have no text.
func (c *call) detokenize() *failure {
	a, f := c.ask()
	if f == nil {
		_, _, f = c.s.resolve(a.model)
	}
	tokens := a.values["tokens"]
	switch {
	case f != nil:
		return f
	case !tokens.Exists():
		return a.missing("tokens")
	case !tokens.IsArray():
		return malformed("list_type", "body.tokens", "Input should be a valid list", describe(tokens))
	}
	var text []byte
	tokens.ForEach(func(_, v gjson.Result) bool {
		var id int
		if id, f = integer("tokens", v); f == nil && id < 0 {
			f = malformed("greater_than_equal", "body.tokens", "Input should be greater than or equal to 0", describe(v))
		}
		if f == nil && id <= math.MaxUint32 && (uint32(id) < roleSystem || uint32(id) > partOther) {
			text = appendText(text, uint32(id))
		}
		return f == nil
	})
	if f != nil {
		return f
	}
	return c.json(http.StatusOK, fmt.Appendf(nil, `{"prompt":%s}`, quote(strings.ToValidUTF8(string(text), "\ufffd"))))
}
