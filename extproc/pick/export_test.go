package pick

// StatedClaim returns the claim of a request of which only the band and the objective are known.
func StatedClaim(band int32, objective float64) Claim {
	return Claim{objective: keyOf(band, objective)}
}

// Tightest is tightest.
func (o *Objectives) Tightest(band int32) float64 { return o.tightest(band) }

// ClaimOf returns the claim of a request at an endpoint for which is was predicted.
func ClaimOf(d Demand, e *Endpoint, is Estimate) Claim {
	f := newForecast(d)
	return f.claim(e, &is, &Gate{})
}
