package probe

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/headgate/headgate/control/profile/survey"
	"github.com/headgate/headgate/internal/engine"
)

// modelsPath is where an OpenAI server lists its models.
const modelsPath = "/v1/models"

// Find returns the API and the model, and detects each that is "". The API is V2 if the server has
// V2 metadata of the model; otherwise it is completions, or else embeddings.
func (s *Server) Find(ctx context.Context, api survey.API, model string) (survey.API, string, error) {
	if api == survey.V2 && model == "" {
		return "", "", errors.New("set --model: a V2 server has no model list")
	}
	if api == "" && model != "" {
		_, err := s.metadata(ctx, model)
		if err == nil {
			return survey.V2, model, nil
		}
		if _, refused := errors.AsType[*Refusal](err); !refused {
			return "", "", err
		}
	}
	if api == survey.V2 {
		return api, model, nil
	}
	listed, _, err := s.ask(ctx, http.MethodGet, modelsPath, nil)
	switch {
	case err != nil && api == "" && missing(err) && model != "":
		return "", "", s.nothing(ctx, model)
	case err != nil && api == "" && missing(err):
		return "", "", errors.New("the server has no model list at /v1/models: set --model to measure a model of a V2 server")
	case err != nil && (!missing(err) || model == ""):
		return "", "", err
	case err == nil:
		if model, err = chosen(listed, model); err != nil {
			return "", "", err
		}
	}
	for _, is := range []survey.API{survey.Completions, survey.Embeddings} {
		if api != "" {
			break
		}
		// If the path exists, the server rejects an empty body because its members are missing.
		if _, _, err := s.ask(ctx, http.MethodPost, is.Path(model), []byte("{}")); err == nil || !missing(err) {
			api = is
		}
	}
	if api == "" {
		return "", "", errors.New("the server lists models but has neither /v1/completions nor /v1/embeddings: set --api and --path")
	}
	return api, model, nil
}

// nothing creates the error for a model that no API of the server has.
func (s *Server) nothing(ctx context.Context, model string) error {
	if _, _, err := s.ask(ctx, http.MethodGet, "/v2", nil); err == nil {
		return fmt.Errorf("the V2 server has not loaded the model %q: load it, or change --model", model)
	}
	return fmt.Errorf("the server has neither %s nor %s: if it is a V2 or an OpenAI server, set --api", survey.ModelPath(model), modelsPath)
}

// chosen returns the listed model with this name. For name "" it returns the only base model in the
// list.
func chosen(listed []byte, name string) (string, error) {
	models, err := engine.ReadModels(listed)
	if err != nil {
		return "", err
	}
	all := slices.Concat(models.Base, models.Adapters)
	switch {
	case name == "" && len(models.Base) == 1:
		return models.Base[0], nil
	case name == "":
		return "", fmt.Errorf("set --model; the server has %s", strings.Join(all, ", "))
	}
	if slices.Contains(all, name) {
		return name, nil
	}
	return "", fmt.Errorf("the server has no model %q; it has %s", name, strings.Join(all, ", "))
}

// metadata returns the V2 metadata of a model.
func (s *Server) metadata(ctx context.Context, model string) ([]byte, error) {
	answer, _, err := s.ask(ctx, http.MethodGet, survey.ModelPath(model), nil)
	return answer, err
}

// OneRow returns a V2 request with one item, made from the metadata of a model.
func (s *Server) OneRow(ctx context.Context, model string) ([]byte, error) {
	told, err := s.metadata(ctx, model)
	if missing(err) {
		return nil, s.nothing(ctx, model)
	}
	if err != nil {
		return nil, err
	}
	return survey.OneRow(told)
}

// Metrics returns the metrics page of the server; nil if it has none.
func (s *Server) Metrics(ctx context.Context) []byte {
	page, _, err := s.ask(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil
	}
	return page
}
