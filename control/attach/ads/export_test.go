package ads

// Followed is how many clusters streams follow.
func Followed(s *Server) int {
	s.lists.mu.Lock()
	defer s.lists.mu.Unlock()
	return len(s.lists.followers)
}
