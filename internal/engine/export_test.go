package engine

// Known reports whether r has the layout of the last page.
func (r *Reader) Known() bool { return r.known }
