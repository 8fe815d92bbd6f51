package prefix

// Len returns the number of blocks that an endpoint has.
func (x *Index) Len(endpoint int) int { return x.parts[endpoint].count }
