package pick

// ClosedFor is by [Endpoint.Number] the highest band of the requests that may not use the endpoint
// now, because its room belongs to another process; [NoBand] if it is open. Numbers beyond its
// length are open.
type ClosedFor []int64

// NoBand is less than any band.
const NoBand = -1 << 32

// shuts reports whether the room of an endpoint belongs to another process.
func (g *Gate) shuts(e *Endpoint) bool {
	return e.Number < len(g.Closed) && int64(g.Band) <= g.Closed[e.Number]
}

// Rooms visits the endpoints whose room belongs to another process and that could serve the
// request. Room reports whether the gate is open apart from that, and at is when the queue of
// prompts was or will be short enough, in nanoseconds since 1970. Call it after Pick has returned
// [ErrNoRoom].
func Rooms(p Policy, s *Snapshot, r Request, visit func(e *Endpoint, room bool, at int64)) {
	gate := r.Gate
	gate.Closed = nil
	eachGated(p, s, r, func(f *forecast, e *Endpoint, c *Copy, trusted bool) {
		if !r.Gate.shuts(e) {
			return
		}
		var is Estimate
		if trusted {
			is = f.estimate(e, c)
		}
		visit(e, f.admits(&gate, e, c, trusted, &is), f.short(&gate, e, is.Step))
	})
}
