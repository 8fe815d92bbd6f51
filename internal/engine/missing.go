package engine

import (
	"bytes"
	"regexp"
)

var (
	notFoundType  = []byte(`"NotFoundError"`)
	modelParam    = regexp.MustCompile(`"param"\s*:\s*"model"`)
	unknownModel  = regexp.MustCompile(`unknown model: '[^']*' (?:is not found|has no available versions)`)
	modelNotFound = regexp.MustCompile(`Model [^"]{1,256} not found`)
	notRegistered = regexp.MustCompile(`"type"\s*:\s*"ModelNotFoundException"`)
	noServable    = regexp.MustCompile(`Servable not found for request: (?:Latest|Specific)\(`)
)

// Missing says whether an answer means that the engine has no such model, as one that restarted or whose copy was taken
// away has none: vLLM's 404 of type NotFoundError about the parameter model (seen on 0.32.0), and the words of Triton 2.51,
// MLServer 1.7.1 and TorchServe 0.12.0 in their 404, and of TensorFlow Serving as its source has them. Another 404 is about a path, or about what a request asks for.
func Missing(status int, body []byte) bool {
	return status == 404 &&
		(bytes.Contains(body, notFoundType) && modelParam.Match(body) || unknownModel.Match(body) || modelNotFound.Match(body) ||
			notRegistered.Match(body) || noServable.Match(body))
}
