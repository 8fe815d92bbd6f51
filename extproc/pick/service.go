package pick

// Service predicts the engine time of a request before its endpoint is chosen: that of the prompt,
// if none of it is cached, and that of each output token, in seconds. It assumes that the endpoints
// of a pool are alike. It returns false while the pool's predictions are not trusted, or if the
// policy makes none. Unlike Pick, it does not depend on the number of endpoints.
func Service(p Policy, s *Snapshot, pool string, d Demand) (prompt, perToken float64, known bool) {
	of := s.Pools[pool]
	if of == nil || p.Rule != Latency || !of.Predictable || len(of.Endpoints) == 0 || of.Endpoints[0].Profile == nil {
		return 0, 0, false
	}
	f, e := newForecast(d), of.Endpoints[0]
	f.Cached = nil
	f.take(e.Profile)
	return f.computing(e), f.longer, true
}
