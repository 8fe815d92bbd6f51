package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// What engines answer to calls of the V2 model repository is recorded of MLServer 1.7.1 and Triton 2.51.0.

// Paths of the V2 model repository and of the protocol around it. What follows the last ones is a model's name, and what it is told.
const (
	IndexPath  = "/v2/repository/index"
	LivePath   = "/v2/health/live"
	modelsPath = "/v2/models/"
	storedPath = "/v2/repository/models/"
)

// RepositoryCall is what an engine is told about a model of its repository, or asked.
type RepositoryCall string

// The calls.
const (
	LoadCall   RepositoryCall = storedPath + "%s/load"
	UnloadCall RepositoryCall = storedPath + "%s/unload"
	ReadyCall  RepositoryCall = modelsPath + "%s/ready"
)

// Path is the path of the call for a model of a name that [CheckStored] let through, at an engine of a kind. Triton takes a name as it stands
// in the path and decodes nothing.
func (c RepositoryCall) Path(k Kind, name string) string {
	if k != Triton {
		name = url.PathEscape(name)
	}
	return fmt.Sprintf(string(c), name)
}

// maxFolder bounds the name of a folder, in bytes.
const maxFolder = 255

// CheckStored refuses the names that no model in the repository of an engine of a kind can have: a name is that of a folder, or one part of a path. Triton
// joins the name that it is told to its repository unchecked, so that ".." loads from beside it, and it has no way to be told a name that a path cannot hold
// as it is. TorchServe takes a name with a slash, and then finds no model by it, for it decodes a path before it parts it (0.12.0).
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

// Told is what the answer to a call that loads or unloads a model of a repository means. None but [Done] and [Absent] says what the engine has then.
type Told uint8

const (
	// Unsure: nobody knows what was done.
	Unsure Told = iota
	// Done: a model that was to be loaded is, and one that was to be unloaded is being unloaded or is gone.
	Done
	// Absent: the repository has no such model, or the engine has not got it.
	Absent
	// Failed: the engine tried, and says why it did not do it. Something may be left all the same: the index tells.
	Failed
	// Closed: the engine has no such calls, or does not let models be loaded by them.
	Closed
)

var (
	notPolled     = regexp.MustCompile(`failed to load '[^']*', failed to poll from model repository`) // Triton's 500: it found no such folder
	notExplicit   = regexp.MustCompile(`explicit model load / unload is not allowed`)                  // Triton's 503 without --model-control-mode=explicit
	invalidURI    = regexp.MustCompile(`Invalid URI specified for model`)                              // MLServer's 422: it found no such file
	errorOfServer = regexp.MustCompile(`^\s*\{\s*"error"\s*:\s*"`)
)

// ReadLoadAnswer reads the answer to [LoadCall]. Fault is what the words say of why the model was not loaded.
//
// Triton's 400, which is INVALID_ARGUMENT in gRPC, does not mean that nothing was tried: it follows a load that failed, of which versions may
// be left. MLServer's 500 is either the words of the model, or of the server itself, which tell nothing.
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

// ReadUnloadAnswer reads the answer to [UnloadCall]. MLServer's 404 says that the model is not there, and so does a 200 of Triton. One of MLServer that is
// being unloaded answers 500 with a trace of its code.
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

// Stage is how far a model of a repository is there: the greater, the more.
type Stage uint8

const (
	// Stored: it is in the repository, and not loaded.
	Stored Stage = iota
	// Leaving: it is being unloaded, and its memory is not free yet.
	Leaving
	// Coming: it is being loaded, or nobody knows.
	Coming
	// Serving: it answers requests.
	Serving
)

// StoredModel is a model that an index lists.
type StoredModel struct {
	Name  string
	Stage Stage
	// Reason is why the engine has it not, in its words; empty where it says nothing.
	Reason string
}

// stages are the states of an index. In gRPC MLServer writes State.READY. A state that is missing is that of a model which was never loaded
// (Triton), and UNKNOWN that of one that is being loaded (MLServer).
var stages = map[string]Stage{"": Stored, "UNAVAILABLE": Stored, "UNLOADING": Leaving, "LOADING": Coming, "UNKNOWN": Coming, "READY": Serving}

// ReadIndex reads the answer to a POST of [IndexPath]: the models in its order, each once. It has an entry for each version; a model is as far as
// the version that is furthest. A state that nobody knows is taken for one of a model that may come.
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

// ReadReady reads the status of an answer to [ReadyCall] of an engine of a kind; sure says whether it tells more than that the model does not serve. MLServer
// answers 404 of a model that is not loaded, and 400 while it is being loaded; Triton 400 of both.
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
