package scrape

// The init function makes tests overwrite buffers that are returned, so that a page that is used
// afterwards gives wrong results.
func init() {
	returned = func(buffer []byte) {
		buffer = buffer[:cap(buffer)]
		for i := range buffer {
			buffer[i] = "vllm:num_requests_running 99\n"[i%29]
		}
	}
}

// Loops returns the number of endpoints that are scraped.
func (s *Scraper) Loops() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.loops)
}

// Idle reports whether a request that begins at an endpoint wakes its loop.
func (s *Scraper) Idle(address string) bool { return s.loopOf(address).idle.Load() }
