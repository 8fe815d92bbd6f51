package limits

import (
	"strconv"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/limits/bucket"
)

// Header is a response header.
type Header struct{ Name, Value string }

// Headers returns OpenAI's x-ratelimit headers for an answer: of requests, tokens, or both.
func Headers(a bucket.Answer) []Header {
	var all []Header
	for _, c := range []struct {
		is                      bucket.Status
		limit, remaining, reset string
	}{
		{a.Requests, wire.RateLimitRequests, wire.RateLimitRemainingRequests, wire.RateLimitResetRequests},
		{a.Tokens, wire.RateLimitTokens, wire.RateLimitRemainingTokens, wire.RateLimitResetTokens},
	} {
		if c.is.Limit > 0 {
			all = append(all, Header{c.limit, strconv.FormatInt(c.is.Limit, 10)},
				Header{c.remaining, strconv.FormatInt(c.is.Left, 10)}, Header{c.reset, reset(c.is.Reset)})
		}
	}
	return all
}

// reset formats a duration as OpenAI does, such as 6m0s or 120ms, in whole milliseconds.
func reset(d time.Duration) string {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond).String()
}

// RetryAfter returns the value of the Retry-After header in whole seconds, at least 1. It returns 0
// if a retry does not help.
func RetryAfter(a bucket.Answer) int {
	if a.Never {
		return 0
	}
	return max(1, int((a.Retry+time.Second-1)/time.Second))
}
