package layout

import (
	"bytes"
	"encoding/json"
	"path"
	"strings"
)

// mlserverConfig is the file that makes a folder a model of MLServer.
const mlserverConfig = "model-settings.json"

// implementations are MLServer's classes for the formats of models. A model of another format needs
// its own model-settings.json, or an MLServer with a default (MLSERVER_MODEL_IMPLEMENTATION).
var implementations = map[string]string{
	"sklearn":       "mlserver_sklearn.SKLearnModel",
	"xgboost":       "mlserver_xgboost.XGBoostModel",
	"lightgbm":      "mlserver_lightgbm.LightGBMModel",
	"catboost":      "mlserver_catboost.CatboostModel",
	"mllib":         "mlserver_mllib.MLlibModel",
	"mlflow":        "mlserver_mlflow.MLflowRuntime",
	"huggingface":   "mlserver_huggingface.HuggingFaceRuntime",
	"alibi-detect":  "mlserver_alibi_detect.AlibiDetectRuntime",
	"alibi-explain": "mlserver_alibi_explain.AlibiExplainRuntime",
}

// singleFile are the formats of which a model is one file. MLServer finds it in a folder only by a
// few names.
var singleFile = map[string]bool{"sklearn": true, "xgboost": true, "lightgbm": true, "catboost": true}

// folderLink is the name of the link to a model that is a folder.
const folderLink = "model"

// planMLServer links a model and writes its settings. If the model has settings, planMLServer links
// all entries of its folder, and changes only the name, the URI and the tensors in the settings.
func planMLServer(p *plan, m Model, c content) error {
	if c.folder(c.at) && c.has(c.at, mlserverConfig) {
		return planNativeMLServer(p, m, c)
	}
	at, err := c.only(c.at)
	if err != nil {
		return err
	}
	format := formatOf("", m.Type, c, at)
	if c.folder(at) || !singleFile[format] {
		at, format = c.at, formatOf("", m.Type, c, c.at)
	}
	name := path.Base(at)
	if c.folder(at) {
		name = folderLink
	}
	settings := map[string]any{"name": m.ID, "parameters": map[string]any{"uri": "./" + name}}
	if class := implementations[format]; class != "" {
		settings["implementation"] = class
	}
	p.link(path.Join(m.ID, name), at)
	return writeSettings(p, m.ID, settings, c)
}

func planNativeMLServer(p *plan, m Model, c content) error {
	text, err := c.readAll(path.Join(c.at, mlserverConfig))
	if err != nil {
		return err
	}
	var settings map[string]any
	numbers := json.NewDecoder(bytes.NewReader(text))
	numbers.UseNumber() // keeps them as they are written
	if err := numbers.Decode(&settings); err != nil || settings == nil {
		return refuse("%s of the model is no JSON object", mlserverConfig)
	}
	settings["name"] = m.ID
	if parameters, is := settings["parameters"].(map[string]any); is {
		if uri, is := parameters["uri"].(string); is {
			parameters["uri"] = inside(uri)
		}
	}
	entries, err := c.list(c.at)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != mlserverConfig {
			p.link(path.Join(m.ID, e.Name()), path.Join(c.at, e.Name()))
		}
	}
	return writeSettings(p, m.ID, settings, c)
}

// inside converts a URI of a model's settings to a path in the model's folder, even if the URI is
// absolute or leads out of the folder. It returns a URI with a scheme unchanged.
func inside(uri string) string {
	if strings.Contains(uri, "://") {
		return uri
	}
	return "./" + strings.TrimPrefix(path.Clean("/"+uri), "/")
}

// writeSettings writes a model's settings, with the tensors of the schema if there is one.
func writeSettings(p *plan, id string, settings map[string]any, c content) error {
	s, err := c.readSchema()
	if err != nil {
		return err
	}
	if s.Inputs != nil {
		settings["inputs"] = s.metadata(s.Inputs)
	}
	if s.Outputs != nil {
		settings["outputs"] = s.metadata(s.Outputs)
	}
	text, err := json.MarshalIndent(settings, "", "  ")
	if err != nil {
		return err
	}
	p.write(path.Join(id, mlserverConfig), append(text, '\n'))
	return nil
}
