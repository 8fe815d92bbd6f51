package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
)

// What TorchServe answers at its management port is recorded of 0.12.0.

// TorchServePort is where TorchServe is managed if nobody says another port.
const TorchServePort = 8081

const (
	torchModels = "/models"
	// torchPage is how many models one page of its list may have at most.
	torchPage = 1000
)

// TorchModels is the path of its list, from a token on, which is empty for the first page.
func TorchModels(from string) string {
	path := fmt.Sprintf("%s?limit=%d", torchModels, torchPage)
	if from != "" {
		path += "&next_page_token=" + url.QueryEscape(from)
	}
	return path
}

// TorchModel is the path of a model of a name that [CheckStored] let through: GET describes it, DELETE unregisters it.
func TorchModel(name string) string { return torchModels + "/" + url.PathEscape(name) }

// TorchRegister is the path that a POST registers a model by, with a process that serves it. The answer does not wait for this one: where it is to wait,
// TorchServe keeps one of the threads with which it answers everybody, and requests for other models wait with it for seconds.
func TorchRegister(name, archive string) string {
	return torchModels + "?" + url.Values{"url": {archive}, "model_name": {name}, "initial_workers": {"1"}, "synchronous": {"false"}}.Encode()
}

// TorchScale is the path that a PUT gives a registered model by what it serves with: a process.
func TorchScale(name string) string { return TorchModel(name) + "?min_worker=1&synchronous=false" }

// TorchError is an answer of TorchServe that is no success.
type TorchError struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// ReadTorchError reads an answer that is no success, and says whether it is one of TorchServe.
func ReadTorchError(body []byte) (e TorchError, own bool) {
	err := json.Unmarshal(body, &e)
	return e, err == nil && e.Type != ""
}

// Types of TorchServe's answers that are no success.
const (
	torchNotFound   = "ModelNotFoundException"
	torchConflict   = "ConflictStatusException"
	torchNotAllowed = "MethodNotAllowedException"
	torchNoResource = "ResourceNotFoundException"
	torchBadToken   = "InvalidKeyException"
)

// WantsToken says whether TorchServe let nobody in, which it answers with 400.
func (e TorchError) WantsToken() bool { return e.Type == torchBadToken }

// ReadTorchAnswer reads the answer to a POST of [TorchRegister], a PUT of [TorchScale] or a DELETE of [TorchModel]. Done means that what was asked for is
// under way or done; a model that is registered already, by an earlier call or by somebody else, is as good. Absent: it finds no archive, or has no such model.
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

// TorchState is how far a model is at TorchServe.
type TorchState struct {
	Registered bool
	// Stage is Stored where it is not registered, or has nothing to serve it with.
	Stage Stage
	// Processes are those that are being started for it.
	Processes []int
}

// Died says whether a process that was being started has ended before it served. TorchServe starts another one then, again and again, and says nothing of it.
func (s TorchState) Died(before TorchState) bool {
	return s.Stage != Serving && slices.ContainsFunc(before.Processes, func(p int) bool { return !slices.Contains(s.Processes, p) })
}

// torchReady is the status of what serves a model. While it is being started it is UNLOADING, which sounds like something else.
const torchReady = "READY"

// ReadTorchModel reads the answer to a GET of [TorchModel].
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

// ReadTorchModels reads the answer to a GET of [TorchModels]: names in its order, and the token of the next page, empty for none.
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
