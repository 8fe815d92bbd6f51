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
)

// Missing says whether an answer means that the engine has no such model, as one that restarted or whose copy was taken
// away has none: vLLM's 404 of type NotFoundError about the parameter model (seen on 0.32.0), and the words of Triton 2.51
// and MLServer 1.7.1 in their 404. Another 404 is about a path, or about what a request asks for.
func Missing(status int, body []byte) bool {
	return status == 404 &&
		(bytes.Contains(body, notFoundType) && modelParam.Match(body) || unknownModel.Match(body) || modelNotFound.Match(body))
}
