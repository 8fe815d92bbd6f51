package payload

// Kept returns the number of bytes that are kept.
func (s *Server) Kept() int64 { return s.kept.Load() }

// MaxKept is the limit of Kept.
const MaxKept = maxKept
