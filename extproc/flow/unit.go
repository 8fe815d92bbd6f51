package flow

// unit converts engine time to tokens. So a pool charges all its requests in one unit, whether or
// not their times can be predicted. It learns the rate from requests whose times are predicted,
// since their tokens are known as well. The zero unit has learned nothing.
type unit struct {
	seconds, tokens float64 // decayed sums over the last requests
}

const (
	// Generated is the service of an output token in tokens. A token of the prompt is one.
	Generated = 2
	// defaultRate is the tokens per second of engine time while no time was predicted. It matters
	// only for pools that serve requests with tokens and others without.
	defaultRate = 1000
	// kept is the part of the sums that remains after a request: about 100 requests count.
	kept = 0.99
	// longest is the longest time in seconds that is learned from. Longer ones are errors.
	longest = 3600
)

// expected returns the service in tokens, and learns nothing.
func (u *unit) expected(s *Service) float64 {
	switch {
	case s.InTokens:
		return s.expected()
	case u.seconds > 0:
		return s.expected() * u.tokens / u.seconds
	case s.Prompt > 0: // the first request whose time is predicted; its tokens are known as well
		return s.Prompt + Generated*s.Tokens
	}
	return s.expected() * defaultRate
}

// scale returns the tokens that a unit of the service is worth, and learns from it.
func (u *unit) scale(s *Service) float64 {
	if s.InTokens {
		return 1
	}
	if seconds := s.expected(); s.Prompt > 0 && seconds > 0 && seconds < longest {
		u.seconds = u.seconds*kept + seconds
		u.tokens = u.tokens*kept + s.Prompt + Generated*s.Tokens
	}
	if u.seconds > 0 {
		return u.tokens / u.seconds
	}
	return defaultRate
}
