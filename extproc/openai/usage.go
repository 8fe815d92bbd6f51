package openai

import "strings"

// usageByOption are the paths whose streams state token usage only if the client asks for it in
// stream_options, as OpenAI's API defines it. Answers that are no streams always state it, and so
// do streams of other paths.
var usageByOption = map[string]bool{"/v1/chat/completions": true, "/v1/completions": true}

// StatesUsage reports whether the answer to a request on a path states token usage, or may state
// it. It is false only for a stream whose complete request has no stream_options. An engine may
// state usage there too: vLLM does with --enable-force-include-usage.
func (r Request) StatesUsage(path string) bool {
	path, _, _ = strings.Cut(path, "?")
	return !r.Stream || !r.noOptions || !usageByOption[path]
}
