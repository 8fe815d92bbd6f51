package engine

import (
	"bytes"
	"regexp"
)

var (
	notFoundType  = []byte(`"NotFoundError"`)
	modelParam    = regexp.MustCompile(`"param"\s*:\s*"model"`)
	unknownModel  = regexp.MustCompile(`unknown model: '[^']*' (?:is not found|has no available versions)`)
	modelNotFound = regexp.MustCompile(`Model ([^"]{1,256}) not found`)
	notRegistered = regexp.MustCompile(`"type"\s*:\s*"ModelNotFoundException"`)
	withVersion   = []byte(" with version ")
	noServable    = []byte("Servable not found for request: Latest(")
)

// Missing reports whether an error means that the engine lacks the model, for instance after a
// restart or an unload: vLLM's 404 of type NotFoundError about the parameter model (seen with
// 0.32.0), the 404 messages of Triton 2.51, MLServer 1.7.1 and TorchServe 0.12.0, and TensorFlow
// Serving's according to its source. Other 404s are about paths or about something that the request
// names. A 404 for an unknown version is not a missing model; otherwise a client could make extproc
// forget a model's copies.
func Missing(status int, body []byte) bool {
	return status == 404 &&
		(bytes.Contains(body, notFoundType) && modelParam.Match(body) || unknownModel.Match(body) || unversioned(body) ||
			notRegistered.Match(body) || bytes.Contains(body, noServable))
}

// unversioned reports whether MLServer lacks every version of a model: its message names the
// requested version, which is empty if none was requested.
func unversioned(body []byte) bool {
	named := modelNotFound.FindSubmatch(body)
	if named == nil {
		return false
	}
	_, version, said := bytes.Cut(named[1], withVersion)
	return !said || len(version) == 0
}
