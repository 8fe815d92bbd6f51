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
}

// ReadModels reads the answer to GET /v1/models. An adapter is a model with a parent (vLLM 0.32.0). Names that
// [CheckName] refuses are left out: no request may use them.
func ReadModels(body []byte) (Models, error) {
	var list struct {
		Data []struct {
			ID     string  `json:"id"`
			Parent *string `json:"parent"`
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
		switch {
		case CheckName(listed.ID) != nil:
		case listed.Parent != nil && *listed.Parent != "":
			m.Adapters = append(m.Adapters, listed.ID)
		default:
			m.Base = append(m.Base, listed.ID)
		}
	}
	return m, nil
}
