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

// modelsPath lists the models of an OpenAI server.
const modelsPath = "/v1/models"

// Find detects the API if api is "", and the model if model is "": V2 if the server knows the model
// there, else completions, else embeddings.
func (s *Server) Find(ctx context.Context, api survey.API, model string) (survey.API, string, error) {
	if api == survey.V2 && model == "" {
		return "", "", errors.New("say with --model which model is to be measured: a V2 server has no list of them")
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
		return "", "",
			errors.New("the server has no list of models at /v1/models: say with --model which one of a V2 server is to be measured")
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
		// An existing path rejects an empty body for its missing members.
		if _, _, err := s.ask(ctx, http.MethodPost, is.Path(model), []byte("{}")); err == nil || !missing(err) {
			api = is
		}
	}
	if api == "" {
		return "", "",
			errors.New("the server lists models and has neither /v1/completions nor /v1/embeddings: say with --api and --path how it is asked")
	}
	return api, model, nil
}

// nothing returns an error for a server that has the model at no API.
func (s *Server) nothing(ctx context.Context, model string) error {
	if _, _, err := s.ask(ctx, http.MethodGet, "/v2", nil); err == nil {
		return fmt.Errorf("the server speaks V2 and has no model %q that is loaded: load it first, or name another one with --model", model)
	}
	return fmt.Errorf("the server has neither %s nor %s: is that a V2 or an OpenAI server? Say with --api how it is asked",
		survey.ModelPath(model), modelsPath)
}

// chosen returns the named model, or the only base model in the list.
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
		return "", fmt.Errorf("say with --model which model is to be measured; the server has %s", strings.Join(all, ", "))
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
