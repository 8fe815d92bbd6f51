package ads

// Followed returns the number of clusters with subscribers.
func Followed(s *Server) int {
	s.lists.mu.Lock()
	defer s.lists.mu.Unlock()
	return len(s.lists.followers)
}
