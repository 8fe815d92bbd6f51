package engine

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
)

// Models is the names that an engine answers to, from its GET /v1/models.
type Models struct {
	Base     []string // base models, under all their names; the first is the engine's own
	Adapters []string
	// Unlisted means that the engine has no list, as Triton, so that its names are unknown. An
	// engine with an empty list answers to no name.
	Unlisted bool
	// MaxLength is the maximum of prompt and answer tokens, from the base models; 0 if unknown.
	MaxLength int
	// Kind is the kind of engine that the base models name as their owner; empty if it is unknown.
	// It counts if neither an object nor the metrics page states the kind: a vLLM may have no
	// metrics (--disable-log-stats).
	Kind Kind
}

// owners are the kinds of engines by the owner of the models that they list: vLLM 0.32.0, SGLang,
// llama.cpp and LMDeploy.
var owners = map[string]Kind{"vllm": VLLM, "sglang": SGLang, "llamacpp": LlamaCpp, "lmdeploy": LMDeploy}

// AskedAs returns the name of an adapter in requests to an engine of a kind. SGLang expects
// base:adapter; for the adapter's own name it answers with the base model (SGLang's documentation
// of LoRA serving).
func AskedAs(k Kind, base []string, adapter string) string {
	if k == SGLang && len(base) > 0 {
		return base[0] + ":" + adapter
	}
	return adapter
}

// ReadModels parses the response to GET /v1/models. An adapter is a model with a parent (vLLM
// 0.32.0, SGLang). Only the field data counts; llama.cpp repeats it as models in Ollama's format.
// Invalid names are left out; see [CheckText].
func ReadModels(body []byte) (Models, error) {
	var list struct {
		Data []struct {
			ID     string  `json:"id"`
			Parent *string `json:"parent"`
			Length int     `json:"max_model_len"`
			Owner  string  `json:"owned_by"`
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
			m.Base, m.Kind = append(m.Base, listed.ID), cmp.Or(m.Kind, owners[listed.Owner])
			if m.MaxLength == 0 || listed.Length > 0 && listed.Length < m.MaxLength {
				m.MaxLength = max(0, listed.Length)
			}
		}
	}
	return m, nil
}
