package openai

// ClosedPaths returns the paths as the table states them.
func ClosedPaths() []string {
	var all []string
	for _, row := range closed {
		all = append(all, row.path)
	}
	return all
}

// Unexplained returns the paths for which the table lacks a source or a reason.
func Unexplained() []string {
	var all []string
	for _, row := range closed {
		if row.source == "" || row.why == "" {
			all = append(all, row.path)
		}
	}
	return all
}

// Truncated returns the Request as if only the beginning of its body were known, so that Prompt
// searches the parts of the prompt itself.
func (r Request) Truncated() Request {
	r.parts, r.truncated = parts{}, true
	return r
}
