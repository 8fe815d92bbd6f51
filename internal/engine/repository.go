package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// Responses to V2 model repository calls, as recorded from MLServer 1.7.1 and Triton 2.51.0.

// Paths of the V2 model repository and of the V2 protocol. A model's name and an action follow the
// last ones.
const (
	IndexPath  = "/v2/repository/index"
	LivePath   = "/v2/health/live"
	modelsPath = "/v2/models/"
	storedPath = "/v2/repository/models/"
)

// RepositoryCall is a call about one model of a repository.
type RepositoryCall string

// The calls.
const (
	LoadCall   RepositoryCall = storedPath + "%s/load"
	UnloadCall RepositoryCall = storedPath + "%s/unload"
	ReadyCall  RepositoryCall = modelsPath + "%s/ready"
)

// Path returns the path of the call for a model whose name passed [CheckStored], at an engine of a
// kind. Triton uses the name in the path as it is and decodes nothing.
func (c RepositoryCall) Path(k Kind, name string) string {
	if k != Triton {
		name = url.PathEscape(name)
	}
	return fmt.Sprintf(string(c), name)
}

// maxFolder limits a folder's name in bytes.
const maxFolder = 255

// CheckStored refuses names that no model in a repository of an engine's kind can have: a name is a
// folder's name or one path segment. Triton joins the name to its repository unchecked, so that
// ".." loads from outside it, and it cannot load a name that a path cannot contain unescaped.
// TorchServe accepts a name with a slash and then finds no such model, since it decodes a path
// before it splits it (0.12.0).
func CheckStored(k Kind, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	switch {
	case strings.Contains(name, "/"):
		return errors.New("it holds a slash, and a model in a repository has the name of its folder, or is one part of a path")
	case len(name) > maxFolder:
		return errors.New("it is too long for the name of a folder")
	case k == Triton && strings.ContainsAny(name, " ?#"):
		return errors.New("it holds a space, ? or #, which Triton cannot be told in a path")
	}
	return nil
}

// Told is the meaning of the response to a load or unload call. Only [Done] and [Absent] determine
// what the engine has afterwards.
type Told uint8

const (
	// Unsure: the result is unknown.
	Unsure Told = iota
	// Done: the model is loaded, or is unloaded or being unloaded.
	Done
	// Absent: the repository has no such model, or it is not loaded.
	Absent
	// Failed: the engine tried and reported an error. Something may still be loaded; the index
	// shows it.
	Failed
	// Closed: the engine has no such calls, or does not allow them.
	Closed
)

var (
	// notPolled is Triton's 500 for a model without a folder.
	notPolled = regexp.MustCompile(`failed to load '[^']*', failed to poll from model repository`)
	// notExplicit is Triton's 503 without --model-control-mode=explicit.
	notExplicit = regexp.MustCompile(`explicit model load / unload is not allowed`)
	// invalidURI is MLServer's 422 for a model without files.
	invalidURI    = regexp.MustCompile(`Invalid URI specified for model`)
	errorOfServer = regexp.MustCompile(`^\s*\{\s*"error"\s*:\s*"`)
)

// ReadLoadAnswer parses the response to [LoadCall]. Fault is the reason for a failed load, from the
// message.
//
// Triton's 400 (gRPC's INVALID_ARGUMENT) does not mean that nothing happened: it follows a failed
// load, of which some versions may remain. MLServer's 500 contains the model's own error or the
// server's, which reveals nothing.
func ReadLoadAnswer(status int, body []byte) (told Told, fault LoadFault) {
	switch {
	case status == 200:
		return Done, UnknownFault
	case status == 404 && modelNotFound.Match(body), status == 500 && notPolled.Match(body):
		return Absent, FilesMissing
	case status == 404, status == 405, status == 501, status == 503 && notExplicit.Match(body):
		return Closed, UnknownFault
	case status == 422 && invalidURI.Match(body):
		return Failed, FilesMissing
	case status == 422, status == 400, status == 500 && errorOfServer.Match(body):
		return Failed, UnknownFault
	}
	return Unsure, UnknownFault
}

// ReadUnloadAnswer parses the response to [UnloadCall]. MLServer's 404 and Triton's 200 may mean
// that the model was not loaded. While MLServer unloads the model, it answers 500 with a stack
// trace.
func ReadUnloadAnswer(status int, body []byte) Told {
	switch {
	case status == 200:
		return Done
	case status == 404 && modelNotFound.Match(body):
		return Absent
	case status == 404, status == 405, status == 501, status == 503 && notExplicit.Match(body):
		return Closed
	}
	return Unsure
}

// Stage is the state of a model in a repository, in ascending order of readiness.
type Stage uint8

const (
	// Stored: it is in the repository and not loaded.
	Stored Stage = iota
	// Leaving: it is being unloaded and still uses memory.
	Leaving
	// Coming: it is being loaded, or its state is unknown.
	Coming
	// Serving: it answers requests.
	Serving
)

// StoredModel is an entry of a repository index.
type StoredModel struct {
	Name  string
	Stage Stage
	// Reason is the engine's message why it is not loaded; may be empty.
	Reason string
}

// stages maps an index's states. In gRPC MLServer writes State.READY. A missing state means never
// loaded (Triton); UNKNOWN means loading (MLServer).
var stages = map[string]Stage{
	"": Stored, "UNAVAILABLE": Stored, "UNLOADING": Leaving, "LOADING": Coming, "UNKNOWN": Coming,
	"READY": Serving,
}

// ReadIndex parses the response to a POST of [IndexPath]: the models in its order, without
// duplicates. If it lists several versions of a model, the result has the state of the most ready
// version. An unknown state becomes Coming.
func ReadIndex(body []byte) ([]StoredModel, error) {
	var entries []struct {
		Name   string `json:"name"`
		State  string `json:"state"`
		Reason string `json:"reason"`
	}
	if err := json.Unmarshal(body, &entries); err != nil {
		return nil, fmt.Errorf("index of the model repository: %w", err)
	}
	if entries == nil {
		return nil, errors.New("index of the model repository: the answer is no list")
	}
	all := make([]StoredModel, 0, len(entries))
	at := make(map[string]int, len(entries))
	for _, e := range entries {
		if CheckText(e.Name) != nil {
			continue
		}
		stage, known := stages[strings.TrimPrefix(e.State, "State.")]
		if !known {
			stage = Coming
		}
		i, seen := at[e.Name]
		if !seen {
			i = len(all)
			at[e.Name] = i
			all = append(all, StoredModel{Name: e.Name})
		}
		all[i].Stage = max(all[i].Stage, stage)
		if all[i].Reason == "" {
			all[i].Reason = strings.TrimSpace(e.Reason)
		}
	}
	return all, nil
}

// ReadReady interprets the status of a response to [ReadyCall] from an engine of a kind. Sure
// reports whether it reveals more than that the model does not serve. MLServer answers 404 for a
// model that is not loaded and 400 while it is being loaded; Triton answers 400 in both cases.
func ReadReady(k Kind, status int) (stage Stage, sure bool) {
	switch {
	case status == 200:
		return Serving, true
	case k == MLServer && status == 404:
		return Stored, true
	case k == MLServer && status == 400:
		return Coming, true
	}
	return Stored, false
}
