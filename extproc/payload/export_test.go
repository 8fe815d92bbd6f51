package payload

// Kept is how many bytes are kept.
func (s *Server) Kept() int64 { return s.kept.Load() }

// MaxKept is how many may be.
const MaxKept = maxKept
