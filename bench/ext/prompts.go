package ext

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// prompts makes the bodies of requests: chat completions of exactly size bytes. Request i asks for
// one of the models in turn. It is safe for concurrent use.
type prompts struct {
	model    string
	models   uint64 // number of models; with more than one, their names end in their number
	distinct uint64 // number of different prompts; 0 means that each is new
	run      uint64 // makes new prompts differ from those of other runs
	size     int
	text     string // longer than a body, so that prompts can begin at several of its bytes
}

// offsets is the number of bytes of the text at which a prompt can begin.
const offsets = 1 << 16

// newPrompts returns prompts. The random source determines their words.
func newPrompts(model string, models, distinct, size int, random *rand.Rand) (*prompts, error) {
	p := &prompts{model: model, models: uint64(models), distinct: uint64(distinct), run: random.Uint64(), size: size}
	if least := len(p.envelope(p.models-1)) + len(p.begin(0)); size < least {
		return nil, fmt.Errorf("--body %d: a body for this model has at least %d bytes", size, least)
	}
	var text strings.Builder
	for text.Len() < size+offsets {
		for range 2 + random.IntN(8) {
			text.WriteByte(byte('a' + random.IntN(26)))
		}
		text.WriteByte(' ')
	}
	p.text = text.String()
	return p, nil
}

// name returns the name of a model.
func (p *prompts) name(i uint64) string {
	if p.models <= 1 {
		return p.model
	}
	return p.model + "-" + strconv.FormatUint(i%p.models, 10)
}

// envelope returns the body without its prompt.
func (p *prompts) envelope(i uint64) string { return before + p.name(i) + between + after }

// The parts of a body around the model's name and the prompt.
const (
	before  = `{"model":"`
	between = `","messages":[{"role":"user","content":"`
	after   = `"}]}`
)

// begin returns the first word of a prompt. Prompts differ from their first bytes on, so that they
// share no prefix.
func (p *prompts) begin(i uint64) string {
	if p.distinct > 0 {
		return fmt.Sprintf("%016x ", i%p.distinct)
	}
	return fmt.Sprintf("%016x ", p.run+i)
}

// body returns the body of request i.
func (p *prompts) body(i uint64) []byte {
	b := make([]byte, 0, p.size)
	b = append(append(append(append(b, before...), p.name(i)...), between...), p.begin(i)...)
	from := i
	if p.distinct > 0 {
		from %= p.distinct
	}
	from = from * 4099 % offsets // successive prompts begin at different words
	n := p.size - len(b) - len(after)
	return append(append(b, p.text[from:from+uint64(n)]...), after...)
}
