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

// Missing says whether an answer means that the engine has no such model, as one that restarted or whose copy was taken
// away has none: vLLM's 404 of type NotFoundError about the parameter model (seen on 0.32.0), and the words of Triton 2.51,
// MLServer 1.7.1 and TorchServe 0.12.0 in their 404, and of TensorFlow Serving as its source has them. Another 404 is about a path, or about what
// a request asks for: one for a version that there is not is no missing model, or whoever asks for it would take the model from its copies.
func Missing(status int, body []byte) bool {
	return status == 404 &&
		(bytes.Contains(body, notFoundType) && modelParam.Match(body) || unknownModel.Match(body) || unversioned(body) ||
			notRegistered.Match(body) || bytes.Contains(body, noServable))
}

// unversioned says whether MLServer has a model in no version: it names the one that was asked for, which is empty where none was.
func unversioned(body []byte) bool {
	named := modelNotFound.FindSubmatch(body)
	if named == nil {
		return false
	}
	_, version, said := bytes.Cut(named[1], withVersion)
	return !said || len(version) == 0
}
