package engine

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Models is what an engine answers to, as its GET /v1/models lists it.
type Models struct {
	Base     []string // base models, under each name that they are served by; the first is the engine's own
	Adapters []string
	// Unlisted says that the engine gives no list, as Triton does: what it answers to is unknown. An empty list is
	// another thing: that engine answers to nothing.
	Unlisted bool
	// MaxLength is the most tokens of a request, prompt and answer, by the base models; 0 if they do not say.
	MaxLength int
}

// AskedAs is the name by which requests ask an engine of a kind for an adapter. SGLang knows it as base:adapter, and answers
// with the base model to the adapter's own name (SGLang's documentation of LoRA serving).
func AskedAs(k Kind, base []string, adapter string) string {
	if k == SGLang && len(base) > 0 {
		return base[0] + ":" + adapter
	}
	return adapter
}

// ReadModels reads the answer to GET /v1/models. An adapter is a model with a parent (vLLM 0.32.0, SGLang); engines
// without adapters name no parent. Only data counts: llama.cpp repeats it as models, in Ollama's shape. What is no name at
// all is left out; see [CheckText].
func ReadModels(body []byte) (Models, error) {
	var list struct {
		Data []struct {
			ID     string  `json:"id"`
			Parent *string `json:"parent"`
			Length int     `json:"max_model_len"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return Models{}, fmt.Errorf("models: %w", err)
	}
	if list.Data == nil {
		return Models{}, errors.New("models: the answer has no data")
	}
	var m Models
	for _, listed := range list.Data {
		switch adapter := listed.Parent != nil && *listed.Parent != ""; {
		case CheckText(listed.ID) != nil:
		case adapter:
			m.Adapters = append(m.Adapters, listed.ID)
		default:
			m.Base = append(m.Base, listed.ID)
			if m.MaxLength == 0 || listed.Length > 0 && listed.Length < m.MaxLength {
				m.MaxLength = max(0, listed.Length)
			}
		}
	}
	return m, nil
}
