package survey

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
)

// words are English words that most tokenizers encode, with the preceding space, as one token.
var words = strings.Fields(`the and for are but not you all any can had her was one our out day get has him his how man new now old see
two way who boy did its let put say she too use dad mom big red car dog cat sun sea sky job law map pen box cup key bed arm leg eye ear air`)

// Text returns n random words, separated by spaces.
func Text(random *rand.Rand, n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = words[random.IntN(len(words))]
	}
	return strings.Join(all, " ")
}

// textWords is the number of words in each text of an embeddings request.
const textWords = 16

// EmbeddingsBody returns a request for the embeddings of random texts, one per row.
func EmbeddingsBody(random *rand.Rand, model string, rows int) []byte {
	texts := make([]string, rows)
	for i := range texts {
		texts[i] = Text(random, textWords)
	}
	return marshal(map[string]any{"model": model, "input": texts})
}

// PromptBody returns a streaming request with a prompt of random words, for exactly outputs output
// tokens. No two prompts have a common prefix, so that the engine cannot use its prefix cache.
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
		panic(err) // encoding text and numbers cannot fail
	}
	return text
}

// Tokenizer estimates the number of tokens in a prompt from its number of words.
type Tokenizer struct {
	Fixed   float64 // number of tokens that the chat template adds to a prompt
	PerWord float64
}

// ShortWords and LongWords are the lengths, in words, of the two prompts that measure a tokenizer.
const (
	ShortWords = 8
	LongWords  = 40
)

// TokenizerOf returns a tokenizer from the token counts of a short and a long prompt.
func TokenizerOf(short, long int) Tokenizer {
	each := max(0.1, float64(long-short)/(LongWords-ShortWords))
	return Tokenizer{Fixed: max(0, float64(short)-each*ShortWords), PerWord: each}
}

// Words returns how many words a prompt of this many tokens has; at least one.
func (t Tokenizer) Words(tokens int) int {
	return max(1, int((float64(tokens)-t.Fixed)/t.PerWord+0.5))
}
