package payload

// Kept returns the number of payload bytes in memory.
func (s *Server) Kept() int64 { return s.kept.Load() }

// MaxKept is the maximum of Kept.
const MaxKept = maxKept
