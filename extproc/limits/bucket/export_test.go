package bucket

// Remember sets how many idle tenants r remembers.
func (r *Route) Remember(n int) { r.maxIdle = n }

// Empty reports whether nothing is remembered of tenants.
func (r *Route) Empty() bool { return len(r.tenants) == 0 && len(r.idle) == 0 && r.own.inFlight == 0 }
