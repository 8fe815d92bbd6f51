package admin

// DrainQuery asks control to drain an endpoint: POST /drain. A query for an endpoint that is
// drained already only asks for its progress.
type DrainQuery struct {
	Endpoint string `json:"endpoint"`
	// Seconds is the time limit of the move of the endpoint's models, from the first query.
	Seconds float64 `json:"seconds,omitempty"`
	// Undo puts the endpoint back.
	Undo bool `json:"undo,omitempty"`
	// Progress only asks for the progress.
	Progress bool `json:"progress,omitempty"`
}

// DrainResult is the progress of a drain.
type DrainResult struct {
	Endpoint string `json:"endpoint"`
	// Drained: the endpoint is drained, or being drained. It is false after Undo.
	Drained bool `json:"drained"`
	// Done: control has finished loading the endpoint's models elsewhere.
	Done bool `json:"done"`
	// Moved is the number of models that have all their copies elsewhere, Moving the number of
	// those that are being loaded there, and Idle the number of those that are not moved because
	// they were not used for an hour.
	Moved  int `json:"moved"`
	Moving int `json:"moving"`
	Idle   int `json:"idle"`
	// Unmoved has a line with the reason for each model that has fewer copies elsewhere than
	// before. Lost is the number of those that have no copy elsewhere.
	Unmoved []string `json:"unmoved,omitempty"`
	Lost    int      `json:"lost,omitempty"`
	// Behind is the number of extprocs that may still send requests to the endpoint. InFlight is
	// the number of requests there, when Behind is 0. Silent are the extprocs that do not say how
	// many they have there.
	Behind   int      `json:"behind"`
	InFlight int64    `json:"inFlight"`
	Silent   []string `json:"silent,omitempty"`
	// Control names the control's process and term. A drain that was forgotten by a new one has to
	// begin again.
	Control string `json:"control"`
}

// Gone reports that the models have moved and that every extproc says that its last request there
// has ended.
func (r *DrainResult) Gone() bool {
	return r.Done && r.Behind == 0 && len(r.Silent) == 0 && r.InFlight == 0
}
