package engine

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Responses of OpenVINO Model Server's REST port, from its documentation and its source
// (docs/model_server_rest_api_tfs.md, src/http_rest_api_handler.cpp); no real server was recorded.

// Paths of the calls about its list of models, which it reads from a file.
const (
	// OVMSConfigPath is the path of a GET of the models' states.
	OVMSConfigPath = "/v1/config"
	// OVMSReloadPath is the path of a POST after which the server has read the file again, and has
	// loaded and unloaded the models that the file has and lacks. The response has the same form,
	// or is an error if one of the models has failed.
	OVMSReloadPath = "/v1/config/reload"
)

// OVMSModelList is the text of the file from which the server reads its models: the folder of each
// by name.
func OVMSModelList(folders map[string]string) ([]byte, error) {
	file := ovmsFile{Models: make([]ovmsEntry, 0, len(folders))}
	for _, name := range slices.Sorted(maps.Keys(folders)) {
		file.Models = append(file.Models, ovmsEntry{ovmsModel{name, folders[name]}})
	}
	return json.MarshalIndent(file, "", "  ")
}

// ReadOVMSModelList parses a file that [OVMSModelList] made.
func ReadOVMSModelList(text []byte) (map[string]string, error) {
	var file ovmsFile
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("list of models: %w", err)
	}
	folders := make(map[string]string, len(file.Models))
	for _, m := range file.Models {
		folders[m.Config.Name] = m.Config.Folder
	}
	return folders, nil
}

type ovmsFile struct {
	Models []ovmsEntry `json:"model_config_list"`
}

type ovmsEntry struct {
	Config ovmsModel `json:"config"`
}

type ovmsModel struct {
	Name   string `json:"name"`
	Folder string `json:"base_path"`
}

// ovmsStages are the stages of a version's states. The server keeps the state LOADING for a version
// that failed, with an error code.
var ovmsStages = map[string]Stage{
	"START": Coming, "LOADING": Coming, "AVAILABLE": Serving, "UNLOADING": Leaving, "END": Stored,
}

// ovmsOK is the error code of a version without an error.
const ovmsOK = "OK"

// ReadOVMSModels parses the response to a GET of [OVMSConfigPath]: the models by name. A model has
// the state of its most ready version; an unknown state becomes Coming. A model that failed, or
// that was taken off the list, is Stored.
func ReadOVMSModels(body []byte) (map[string]StoredModel, error) {
	var models map[string]struct {
		Versions []struct {
			State  string `json:"state"`
			Status struct {
				Code    string `json:"error_code"`
				Message string `json:"error_message"`
			} `json:"status"`
		} `json:"model_version_status"`
	}
	if err := json.Unmarshal(body, &models); err != nil {
		return nil, fmt.Errorf("states of the models: %w", err)
	}
	if models == nil {
		return nil, errors.New("states of the models: the answer is no object")
	}
	all := make(map[string]StoredModel, len(models))
	for name, is := range models {
		if CheckText(name) != nil {
			continue
		}
		m := StoredModel{Name: name}
		for _, v := range is.Versions {
			stage, known := ovmsStages[v.State]
			if !known {
				stage = Coming
			}
			if code := cmp.Or(v.Status.Code, ovmsOK); code != ovmsOK {
				stage = Stored
				m.Reason = fmt.Sprintf("%s, error %s: %s", v.State, code, cmp.Or(v.Status.Message, "no message"))
			}
			m.Stage = max(m.Stage, stage)
		}
		all[name] = m
	}
	return all, nil
}
