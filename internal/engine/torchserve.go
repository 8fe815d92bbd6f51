package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
)

// Responses of TorchServe's management port, as recorded from 0.12.0.

// TorchServePort is TorchServe's default management port.
const TorchServePort = 8081

const (
	torchModels = "/models"
	// torchPage is the page size of its list of models.
	torchPage = 1000
)

// TorchModels is the path of the list of models from a page token on, which is empty for the first
// page.
func TorchModels(from string) string {
	path := fmt.Sprintf("%s?limit=%d", torchModels, torchPage)
	if from != "" {
		path += "&next_page_token=" + url.QueryEscape(from)
	}
	return path
}

// TorchModel is the path of a model whose name passed [CheckStored]: GET describes it, DELETE
// unregisters it.
func TorchModel(name string) string { return torchModels + "/" + url.PathEscape(name) }

// TorchRegister is the path of a POST that registers a model with one worker process. The response
// does not wait for the worker: if it did, TorchServe would block one of its few threads, and
// requests for other models would wait for seconds.
func TorchRegister(name, archive string) string {
	return torchModels + "?" + url.Values{
		"url": {archive}, "model_name": {name}, "initial_workers": {"1"},
		"synchronous": {"false"},
	}.Encode()
}

// TorchScale is the path of a PUT that gives a registered model a worker process.
func TorchScale(name string) string { return TorchModel(name) + "?min_worker=1&synchronous=false" }

// TorchError is an error response of TorchServe.
type TorchError struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// ReadTorchError parses an error response, and reports whether it is TorchServe's.
func ReadTorchError(body []byte) (e TorchError, own bool) {
	err := json.Unmarshal(body, &e)
	return e, err == nil && e.Type != ""
}

// Types of TorchServe's errors.
const (
	torchNotFound   = "ModelNotFoundException"
	torchConflict   = "ConflictStatusException"
	torchNotAllowed = "MethodNotAllowedException"
	torchNoResource = "ResourceNotFoundException"
	torchBadToken   = "InvalidKeyException"
)

// WantsToken reports whether TorchServe requires a token; it answers with 400.
func (e TorchError) WantsToken() bool { return e.Type == torchBadToken }

// ReadTorchAnswer parses the response to a POST of [TorchRegister], a PUT of [TorchScale] or a
// DELETE of [TorchModel]. Done means that the action is in progress or complete, or that the model
// is already registered. Absent means that TorchServe finds no archive, or has no such model.
func ReadTorchAnswer(status int, body []byte) Told {
	e, own := ReadTorchError(body)
	switch {
	case status == 200, status == 202, e.Type == torchConflict:
		return Done
	case !own:
		return Unsure
	case e.Type == torchNotFound:
		return Absent
	case e.Type == torchNotAllowed, e.Type == torchNoResource:
		return Closed
	}
	return Failed
}

// TorchState is the state of a model at TorchServe.
type TorchState struct {
	Registered bool
	// Stage is Stored if the model is not registered or has no worker.
	Stage Stage
	// Processes are the workers being started.
	Processes []int
}

// Died reports whether a starting worker ended before it served. TorchServe then silently starts
// another one, again and again.
func (s TorchState) Died(before TorchState) bool {
	return s.Stage != Serving && slices.ContainsFunc(before.Processes, func(p int) bool { return !slices.Contains(s.Processes, p) })
}

// torchReady is the status of a worker that serves. While it starts, its status is UNLOADING,
// despite the name.
const torchReady = "READY"

// ReadTorchModel parses the response to a GET of [TorchModel].
func ReadTorchModel(status int, body []byte) (TorchState, error) {
	if e, own := ReadTorchError(body); own && e.Type == torchNotFound {
		return TorchState{}, nil
	}
	var versions []struct {
		Workers []struct {
			Status string `json:"status"`
			PID    int    `json:"pid"`
		} `json:"workers"`
	}
	if status != 200 {
		return TorchState{}, errors.New(strconv.Itoa(status))
	}
	if err := json.Unmarshal(body, &versions); err != nil {
		return TorchState{}, fmt.Errorf("description of a model: %w", err)
	}
	s := TorchState{Registered: true}
	for _, v := range versions {
		for _, w := range v.Workers {
			switch {
			case w.Status == torchReady:
				s.Stage = Serving
				continue
			case w.PID > 0:
				s.Processes = append(s.Processes, w.PID)
			}
			s.Stage = max(s.Stage, Coming)
		}
	}
	return s, nil
}

// ReadTorchModels parses the response to a GET of [TorchModels]: names in its order, and the token
// of the next page, empty at the end.
func ReadTorchModels(body []byte) (names []string, next string, err error) {
	var page struct {
		Next   string `json:"nextPageToken"`
		Models []struct {
			Name string `json:"modelName"`
		} `json:"models"`
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return nil, "", fmt.Errorf("list of models: %w", err)
	}
	if page.Models == nil {
		return nil, "", errors.New("list of models: the answer has no models")
	}
	for _, m := range page.Models {
		names = append(names, m.Name)
	}
	return names, page.Next, nil
}
