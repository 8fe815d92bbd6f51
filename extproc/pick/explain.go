package pick

import "errors"

// Excluded returns why Pick does not choose an endpoint of the pool for a request, whatever the
// policy; empty if it may. The endpoint is given by its index.
func (p *Pool) Excluded(endpoint int, r Request) string {
	e := p.Endpoints[endpoint]
	copies, err := p.admit(r)
	switch {
	case errors.Is(err, ErrNotAddressable), errors.Is(err, ErrUnlisted):
		return "it does not list the model"
	case e.State == Out && e.Unscraped:
		return "it has not answered a scrape yet"
	case e.State == Out:
		return "it is out: not ready, asleep, or without an open port"
	case e.State == Lost && r.FailClose:
		return "it is lost, and the route fails closed"
	case !r.Only.Has(e.Address):
		return "the data plane does not allow it for this request"
	}
	for i := range copies {
		if c := &copies[i]; c.Endpoint == endpoint {
			if c.full() {
				return "its copy of the model is at its concurrency limit"
			}
			return ""
		}
	}
	return "it has no copy of the model"
}
