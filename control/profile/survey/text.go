package survey

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
)

// words are words that most tokenizers encode as one token with the space before them.
var words = strings.Fields(`the and for are but not you all any can had her was one our out day get has him his how man new now old see
two way who boy did its let put say she too use dad mom big red car dog cat sun sea sky job law map pen box cup key bed arm leg eye ear air`)

// Text returns random words.
func Text(random *rand.Rand, n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = words[random.IntN(len(words))]
	}
	return strings.Join(all, " ")
}

// textWords is the number of words of a generated embeddings input.
const textWords = 16

// EmbeddingsBody returns a request for the embeddings of random texts.
func EmbeddingsBody(random *rand.Rand, model string, rows int) []byte {
	texts := make([]string, rows)
	for i := range texts {
		texts[i] = Text(random, textWords)
	}
	return marshal(map[string]any{"model": model, "input": texts})
}

// PromptBody returns a streamed request for exactly outputs tokens, after a prompt of random words.
// No two prompts have a common prefix, so that none is cached.
func PromptBody(random *rand.Rand, api API, model string, promptWords, outputs int) []byte {
	prompt := Text(random, promptWords)
	body := map[string]any{
		"model": model, "max_tokens": outputs, "temperature": 0, "ignore_eos": true, "stream": true,
		"stream_options": map[string]bool{"include_usage": true, "continuous_usage_stats": true},
	}
	if api == Chat {
		body["messages"] = []map[string]string{{"role": "user", "content": prompt}}
	} else {
		body["prompt"] = prompt
	}
	return marshal(body)
}

func marshal(body any) []byte {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // text and numbers always encode
	}
	return text
}

// Tokenizer estimates how many tokens a prompt of words has.
type Tokenizer struct {
	Fixed   float64 // of the template around the prompt
	PerWord float64
}

// Lengths of the two prompts that measure a tokenizer.
const (
	ShortWords = 8
	LongWords  = 40
)

// TokenizerOf returns the tokenizer for which a short and a long prompt have these tokens.
func TokenizerOf(short, long int) Tokenizer {
	each := max(0.1, float64(long-short)/(LongWords-ShortWords))
	return Tokenizer{Fixed: max(0, float64(short)-each*ShortWords), PerWord: each}
}

// Words returns the number of words for some tokens, at least one.
func (t Tokenizer) Words(tokens int) int {
	return max(1, int((float64(tokens)-t.Fixed)/t.PerWord+0.5))
}
