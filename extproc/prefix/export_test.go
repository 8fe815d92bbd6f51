package prefix

// Len returns how many blocks an endpoint has.
func (x *Index) Len(endpoint int) int { return x.parts[endpoint].count }
