package llm

import (
	"math/rand/v2"
	"unicode/utf8"

	"github.com/headgate/headgate/internal/hash"
)

// tokenBytes is the maximum length of a token. A token is a text of at most four bytes, packed into
// its id with the first byte lowest. A space always starts a token. So no vocabulary is needed, and
// a prompt that repeats an answer has the same tokens: the continuation of a conversation hits the
// prefix cache.
const tokenBytes = 4

// Ids of role tokens in a chat and of other parts. No text has these tokens, because UTF-8 has no
// byte 0xff.
const (
	roleSystem uint32 = 0xff00 + iota
	roleUser
	roleAssistant
	roleOther
	partOther // a non-text part of a message, such as an image or audio
)

// appendTokens appends the tokens of text.
func appendTokens(tokens []uint32, text string) []uint32 {
	var token uint32
	n := 0
	for i := range len(text) {
		if n > 0 && (n == tokenBytes || text[i] == ' ') {
			tokens = append(tokens, token)
			token, n = 0, 0
		}
		token |= uint32(text[i]) << (8 * n)
		n++
	}
	if n > 0 {
		tokens = append(tokens, token)
	}
	return tokens
}

// appendText appends the text of a token.
func appendText(text []byte, token uint32) []byte {
	for ; token != 0; token >>= 8 {
		text = append(text, byte(token))
	}
	return text
}

// roleToken returns the token that marks a message of a role.
func roleToken(role string) uint32 {
	switch role {
	case "system", "developer":
		return roleSystem
	case "user":
		return roleUser
	case "assistant":
		return roleAssistant
	}
	return roleOther
}

// speech generates the output of a request. Equal seeds, models and prompts give equal outputs.
type speech struct{ words *rand.PCG }

func newSpeech(seed uint64, model string, prompt []uint32) speech {
	h := hash.Of(model)
	for _, t := range prompt {
		h = hash.Add(h, uint64(t))
	}
	return speech{rand.NewPCG(seed, h)}
}

// length returns the output length of a request without a limit: 32 to 256 tokens.
func (s speech) length() int { return 32 + int(s.words.Uint64()%225) }

// tokens returns n output tokens. Each is a word: a space and three letters.
func (s speech) tokens(n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		r := s.words.Uint64()
		token := uint32(' ')
		for shift := 8; shift < 32; shift += 8 {
			token |= uint32('a'+r%26) << shift
			r /= 26
		}
		tokens[i] = token
	}
	return tokens
}

// characters counts code points, as vLLM does.
func characters(text string) int { return utf8.RuneCountInString(text) }
